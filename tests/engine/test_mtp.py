"""The MTP head: drafts equal the reference's, token for token, however the prompt is cut."""

import numpy as np
import pytest

from coachwhip import LLM, RequestError
from tests.reference.nemotron_h import Reference

NAME = "nemotron_latent_mtp"
DEPTH = 4


@pytest.fixture(scope="module")
def prompts():
    draws = np.random.default_rng(8)
    return [draws.integers(0, 512, n).tolist() for n in (1, 2, 3, 17, 33, 64, 100)]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [512, 1, 7, 16])
def test_drafts_equal_the_reference(tiny_folder, prompts, budget):
    folder = tiny_folder(NAME)
    llm = LLM(str(folder), dtype="float32", max_model_len=128, max_num_batched_tokens=budget)
    reference = Reference.from_folder(folder)
    for prompt in prompts:
        assert llm.draft(prompt, DEPTH) == reference.draft(prompt, DEPTH)
    scheduler = llm.engine.scheduler
    scheduler.check()
    assert scheduler.slots.free == scheduler.slots.total
    assert scheduler.pages.free == scheduler.pages.total


@pytest.mark.slow
def test_what_cannot_be_drafted_is_refused(tiny_folder, prompts):
    llm = LLM(str(tiny_folder(NAME)), dtype="float32", max_model_len=128)
    for prompt, count in ((prompts[-1], 29), (prompts[0], 0), ([], 1), ([600], 1)):
        with pytest.raises(RequestError):
            llm.draft(prompt, count)
    plain = LLM(str(tiny_folder("nemotron_dense")), dtype="float32", max_model_len=128)
    with pytest.raises(RequestError, match="no multi-token-prediction head"):
        plain.draft(prompts[0], 1)
