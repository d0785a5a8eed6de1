"""States and pages in fewer bits than the model computes in: close, and mostly the same tokens."""

import numpy as np
import pytest

from coachwhip import LLM, SamplingParams
from tests.engine.conftest import run_rows
from tests.reference.nemotron_h import Reference

NAME = "nemotron_conv3"
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)

# Largest difference of a logit of magnitude 6 to 8 from the float32 reference, when every row reads
# what the row before it has stored; twice what three prompts showed (0.0024, 0.022, 0.026).
CACHES = [
    pytest.param({"mamba_ssm_cache_dtype": "float16"}, 0.005, id="ssm-float16"),
    pytest.param({"mamba_ssm_cache_dtype": "bfloat16"}, 0.05, id="ssm-bfloat16"),
    pytest.param({"kv_cache_dtype": "bfloat16"}, 0.05, id="kv-bfloat16"),
]


@pytest.mark.slow
@pytest.mark.parametrize("options, tolerance", CACHES)
def test_a_float32_model_with_narrower_caches(tiny_folder, options, tolerance):
    folder = tiny_folder(NAME)
    reference = Reference.from_folder(folder)
    llm = LLM(str(folder), dtype="float32", max_model_len=256, max_num_seqs=8, **options)
    draws = np.random.default_rng(11)

    ids = draws.integers(0, 512, 200).tolist()
    want = reference.logits(ids).numpy()
    pages = list(range(13))
    rows = [run_rows(llm.engine.runner, [(ids[:64], 0, -1, 0, pages)])[0]]
    for at in range(64, len(ids)):
        rows += run_rows(llm.engine.runner, [(ids[at : at + 1], at, 0, 0, pages)])
    error = np.abs(np.concatenate(rows) - want).max()
    assert 1e-4 < error < tolerance, "below: the cache is not in this dtype at all"

    prompts = [draws.integers(0, 512, n).tolist() for n in (1, 2, 7, 16, 33, 90, 5, 40)]
    outs = llm.generate([{"prompt_token_ids": p} for p in prompts], GREEDY)
    same = [
        out.outputs[0].token_ids == reference.greedy(p, GREEDY.max_tokens)
        for out, p in zip(outs, prompts, strict=True)
    ]
    assert sum(same) >= 6, same
    llm.engine.scheduler.check()
