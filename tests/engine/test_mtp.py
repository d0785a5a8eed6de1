"""The MTP head: drafts equal the reference's, token for token, however the prompt is cut."""

import numpy as np
import pytest

from coachwhip import LLM, SamplingParams
from tests.engine.conftest import decided_tensors
from tests.engine.drafts import drafts_after
from tests.reference.checkpoints import write_checkpoint
from tests.reference.nemotron_h import Reference
from tests.reference.tiny_configs import TINY_CONFIGS

NAME = "nemotron_latent_mtp"
DEPTH = 4


def with_head(name: str, pattern: str, head: str) -> dict:
    """Returns a tiny config with other layers, and with a head of these."""
    return TINY_CONFIGS[name] | {
        "hybrid_override_pattern": pattern,
        "num_nextn_predict_layers": 1,
        "mtp_hybrid_override_pattern": head,
    }


OTHER_HEADS = {
    "three layers over experts of the full width": with_head("nemotron_moe", "M*E", "*-E"),
    "no experts": with_head("nemotron_dense", "M*", "*-"),
}


HEAD = {"method": "mtp", "num_speculative_tokens": DEPTH, "adaptive": False}


def load(folder, dtype: str = "float32", budget: int = 512) -> LLM:
    return LLM(
        str(folder),
        dtype=dtype,
        max_model_len=128,
        max_num_batched_tokens=budget,
        speculative_config=HEAD,
    )


@pytest.fixture(scope="module")
def prompts():
    draws = np.random.default_rng(8)
    return [draws.integers(0, 512, n).tolist() for n in (1, 2, 3, 17, 33, 64, 100)]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [512, 5, 7, 16])
def test_drafts_equal_the_reference(tiny_folder, prompts, budget):
    folder = tiny_folder(NAME)
    llm = load(folder, budget=budget)
    reference = Reference.from_folder(folder)
    for prompt in prompts:
        assert drafts_after(llm, prompt, DEPTH) == reference.draft(prompt, DEPTH)
    scheduler = llm.engine.scheduler
    scheduler.check()
    for pool in (scheduler.cache.slots, scheduler.cache.pages):
        assert pool.live == 0 and pool.owned == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_HEADS)
def test_heads_of_other_layers(tmp_path, prompts, name):
    write_checkpoint(tmp_path, OTHER_HEADS[name])
    reference = Reference.from_folder(tmp_path)
    for budget in (512, 7):
        llm = load(tmp_path, budget=budget)
        for prompt in prompts:
            assert drafts_after(llm, prompt, DEPTH) == reference.draft(prompt, DEPTH)


def same_drafts(folder) -> np.ndarray:
    """Says which bfloat16 drafts equal the float32 reference's, [prompts, DEPTH].

    Prompts whose next token is not the reference's are left out: their drafts follow another text.
    """
    llm = load(folder, "bfloat16")
    reference = Reference.from_folder(folder)
    draws, same = np.random.default_rng(9), []
    for length in range(1, 100, 2):
        prompt = draws.integers(0, 512, length).tolist()
        token, drafts = drafts_after(llm, prompt, DEPTH)
        want_token, want = reference.draft(prompt, DEPTH)
        if token == want_token:
            same.append(np.equal(drafts, want))
    assert len(same) >= 45
    return np.array(same)


@pytest.mark.slow
def test_bfloat16_drafts_are_the_references_where_the_choice_of_experts_is_clear(tmp_path):
    write_checkpoint(tmp_path, TINY_CONFIGS[NAME], tensors=decided_tensors(NAME))
    assert same_drafts(tmp_path).mean() >= 0.9  # 0.93 to 0.95 for three draws of prompts


@pytest.mark.slow
def test_bfloat16_drafts_of_undecided_routers(tiny_folder):
    """Rows that choose another expert than in float32 differ much, as in `test_logits.py`; a draft
    after one that differs differs too, so that 0.63 to 0.65 of all and 0.85 to 0.89 of the first
    are the reference's."""
    same = same_drafts(tiny_folder(NAME))
    assert same[:, 0].mean() >= 0.8
    assert same.mean() >= 0.55


@pytest.mark.slow
@pytest.mark.parametrize("budget", [512, 16])
def test_drafts_between_steps_change_no_token(tiny_folder, prompts, budget):
    folder = tiny_folder(NAME)
    llm = load(folder, budget=budget)
    reference, engine = Reference.from_folder(folder), llm.engine
    greedy, running = SamplingParams(max_tokens=16, ignore_eos=True), prompts[2:6]
    outputs = [engine.add_request(str(i), prompt, greedy) for i, prompt in enumerate(running)]
    steps = 0
    while engine.has_unfinished:
        engine.step()
        other = prompts[steps % len(prompts)]
        assert drafts_after(llm, other, DEPTH) == reference.draft(other, DEPTH)
        engine.scheduler.check()
        steps += 1
    assert steps >= greedy.max_tokens / (1 + DEPTH)
    assert [output.outputs[0].token_ids for output in outputs] == [
        reference.greedy(prompt, greedy.max_tokens) for prompt in running
    ]
