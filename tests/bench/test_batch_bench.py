"""The batch benchmark runs, and its programs give the same texts."""

import json

import pytest
from click.testing import CliRunner

from bench.batch.__main__ import DEMANDS, main
from bench.batch.workload import QUICK


@pytest.mark.slow
def test_a_quick_run_measures_every_program(tmp_path):
    file = tmp_path / "batch.json"
    done = CliRunner().invoke(main, ["--quick", "--json", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    programs = {one["program"]: one for one in json.loads(file.read_text())["programs"]}
    assert programs.keys() == {"batch", *DEMANDS}
    assert all(one["requests"] == QUICK.requests for one in programs.values())
    # Of each prefix the first request computes it, and the others find 64 of its tokens.
    found = (QUICK.requests - QUICK.prefixes) * 64
    total = QUICK.requests * (QUICK.prefix + QUICK.tail)
    assert programs["batch"]["cached_share"] == programs["one by one"]["cached_share"]
    assert programs["batch"]["cached_share"] == pytest.approx(found / total)
    assert programs["batch, caching off"]["cached_share"] == 0
