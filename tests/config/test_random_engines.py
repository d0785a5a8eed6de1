"""Options on a running model: each set is refused, or gives the reference's tokens; and a full
engine takes the memory that was planned, no more."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coachwhip.config import EngineOptions
from coachwhip.engine import Engine
from coachwhip.errors import ConfigError
from coachwhip.sampling.params import SamplingParams
from tests.reference.checkpoints import write_checkpoint
from tests.reference.nemotron_h import Reference
from tests.reference.tiny_configs import TINY_CONFIGS

NAME = "nemotron_latent_mtp"
LONGEST, NEW = 64, 6
MOST_DRAFTS = {"method": "mtp", "num_speculative_tokens": 5, "adaptive": False}
MIB = 1 << 20

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp(NAME)
    write_checkpoint(folder, TINY_CONFIGS[NAME])
    return folder


@pytest.fixture(scope="module")
def engine(folder):
    """Has pools for every set of options below."""
    return Engine(
        EngineOptions(
            folder,
            max_model_len=LONGEST,
            num_state_slots=400,
            num_kv_pages=600,
            kv_cache_page_size=8,
            speculative_config=MOST_DRAFTS,
        )
    )


@pytest.fixture(scope="module")
def texts(folder):
    """Prompts, some with a common beginning, and what the reference goes on with."""
    draws = np.random.default_rng(3)
    trunk = draws.integers(0, 512, 40).tolist()
    prompts = [trunk, trunk[:33], trunk[:17], [*trunk[:20], 7, 8, 9], trunk[:1], trunk]
    reference = Reference.from_folder(folder)
    return [(p, reference.greedy(p, NEW)) for p in prompts]


def some(*values) -> st.SearchStrategy:
    return st.sampled_from(values)


OPTION_SETS = st.fixed_dictionaries(
    {
        "mamba_cache_mode": some("auto", "none", "align", "all"),
        "enable_chunked_prefill": some(None, True, False),
    },
    optional={
        "enable_prefix_caching": some(None, True, False),
        "mamba_block_size": st.one_of(st.none(), st.integers(4, 16), st.integers(3, 70)),
        "max_num_batched_tokens": st.one_of(st.none(), st.integers(1, 80), st.integers(60, 80)),
        "max_num_seqs": st.integers(1, 9),
        "max_model_len": st.integers(41, LONGEST + 2),
        "num_state_slots": st.one_of(st.none(), st.integers(1, 400)),
        "num_kv_pages": st.one_of(st.none(), st.integers(7, 600)),
        "cache_memory": some(None, "1MiB", "4MiB", "16MiB", 0.5),
        "scheduling_policy": some("fcfs", "priority"),
        "step_loop": some("auto", "simple", "overlapped"),
        "speculative_config": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "method": some("mtp", "ngram"),
                    "num_speculative_tokens": st.integers(1, 6),
                    "adaptive": st.booleans(),
                }
            ),
        ),
        "dtype": some("auto", "float32", "float32", "float32", "bfloat16"),
        "kv_cache_page_size": some(8, 8, 8, 8, 16),
    },
)
REFUSED, RUN = [], []


@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(options=OPTION_SETS)
def test_options_are_refused_or_change_no_token(engine, texts, options):
    try:
        one = engine.with_options(**options)
    except ConfigError as error:
        assert "\n" not in str(error)
        REFUSED.append(error.code)
        return
    RUN.append(one.config)
    outputs = [
        one.add_request(str(i), prompt, SamplingParams(max_tokens=NEW, ignore_eos=True))
        for i, (prompt, _) in enumerate(texts)
    ]
    while one.has_unfinished:
        one.step()
        one.scheduler.check()
    got = [output.outputs[0].token_ids for output in outputs]
    room = one.config.max_model_len
    assert got == [new[: room - len(prompt)] for prompt, new in texts]
    for pool in (one.scheduler.cache.slots, one.scheduler.cache.pages):
        assert pool.owned == 0


def test_the_sets_of_options_were_of_both_kinds():
    assert len(RUN) > 60 and len(REFUSED) > 20
    assert {c.mamba_cache_mode for c in RUN} == {"none", "align", "all"}
    assert {c.enable_chunked_prefill for c in RUN} == {True, False}
    assert any(c.speculation for c in RUN) and any(not c.speculation for c in RUN)


def test_a_full_engine_takes_the_memory_that_was_planned(folder):
    """At the planned concurrency all run and nothing is preempted; and when all slots and pages
    have been used the process is as much larger as the plan says."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.config.full_engine", str(folder)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["running"] == found["planned_requests"] == 24
    assert found["preemptions"] == 0
    assert 127 * MIB < found["planned_bytes"] <= 128 * MIB
    assert found["grown_bytes"] == pytest.approx(found["unused_bytes"], rel=0.05)
