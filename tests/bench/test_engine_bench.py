"""The engine benchmark runs, and its cases really compare a cold run with a warm one."""

import json

import pytest
from click.testing import CliRunner

from bench.engine.__main__ import main
from bench.engine.caching import shared_prefix
from bench.engine.cases import CASES
from bench.engine.measured import QUICK
from coachwhip.config import EngineOptions
from coachwhip.engine import Engine


@pytest.mark.slow
def test_a_quick_run_measures_every_case_of_the_small_model(tmp_path):
    file = tmp_path / "engine.json"
    done = CliRunner().invoke(main, ["--quick", "--json", str(file)])
    assert done.exit_code == 0, done.output
    (measured,) = json.loads(file.read_text()).values()
    assert len(measured) == len(CASES)
    for m in measured:
        assert m["without_s"] > 0 and m["with_s"] > 0 and m["case"] in done.output
    assert CliRunner().invoke(main, ["nothing"]).exit_code == 2


@pytest.mark.slow
def test_the_warm_prompts_restore_the_whole_prefix():
    engine = Engine(EngineOptions(max_model_len=QUICK.longest, mamba_block_size=16))
    measured = shared_prefix(engine, QUICK)
    metrics = engine.metrics()
    assert metrics.prefix_cache_hits == 2 * QUICK.repeats * QUICK.prefix
    assert metrics.prefix_miss_total["no_state"] == QUICK.repeats
    assert measured.value == measured.without_s / measured.with_s
