"""`coachwhip verify`: a table of what was compared, and exit code 1 where something differs."""

import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from coachwhip import verify as runs
from coachwhip.commands.verify import verify
from tests.reference.checkpoints import write_checkpoint
from tests.reference.tiny_configs import TINY_CONFIGS


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY_CONFIGS["nemotron_dense"])
    return str(folder)


@pytest.mark.slow
def test_every_way_of_running_is_equal_and_said_so(tiny):
    done = CliRunner().invoke(verify, [tiny, "--quick", "--max-tokens", "4"])
    assert done.exit_code == 0, done.output
    rows = re.findall(r"│ (\w+) +│ (\w+) +│ ([\w ]+?) +│ +(\d+) │ +(\d+) │ (\d+)", done.output)
    assert len(rows) == 3 * 3 * 2
    for mode, start, _, count, equal, cached in rows:
        assert count == equal == "6"
        assert (int(cached) > 0) == (mode != "none"), (mode, start)
    assert done.stdout.splitlines()[-1] == f"{tiny} in float32: all 108 runs are equal"
    title = done.stdout.partition("┏")[0]
    assert tiny in "".join(title.split()) and "grid of 8" in " ".join(title.split())


@pytest.mark.slow
def test_a_difference_is_named_and_exits_with_1(tiny, monkeypatch):
    true_outcomes = runs.outcomes

    def one_wrong(*arguments):
        for i, outcome in enumerate(true_outcomes(*arguments)):
            wrong = replace(
                outcome, equal=False, first_difference="prompt 3, new token 1: 5, not 6"
            )
            yield wrong if i == 7 else outcome

    monkeypatch.setattr(runs, "outcomes", one_wrong)
    done = CliRunner().invoke(verify, [tiny, "--quick", "--max-tokens", "1"])
    assert done.exit_code == 1
    assert "prompt 3, new token 1: 5, not 6" in done.output
    assert "mode='none'" in done.output
    assert done.stderr.splitlines()[-1] == f"{tiny} in float32: 1 of 108 runs are not equal"
    assert "are equal" not in done.output
