"""`coachwhip verify`: a table of what was compared, and exit code 1 where something differs."""

import re
from collections import defaultdict
from dataclasses import replace

import pytest
from click.testing import CliRunner

from coachwhip import verify as runs
from coachwhip.commands import verify as command
from coachwhip.commands.verify import verify
from tests.cli.one_line import one_line
from tests.reference.checkpoints import write_checkpoint
from tests.reference.tiny_configs import TINY_CONFIGS

ROW = re.compile(
    r"│ (\w+) +│ (\w+) +│ (\w+) +│ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a function: name of a tiny config -> folder of its checkpoint."""

    def made(name: str) -> str:
        folder = tmp_path_factory.mktemp(name)
        write_checkpoint(folder, TINY_CONFIGS[name])
        return str(folder)

    return made


@pytest.fixture
def few(monkeypatch):
    """Makes --quick quicker: 4 runs in each mode and state of the cache, and 4 with drafts."""
    monkeypatch.setattr(command, "QUICK_BUDGETS", (3, 64))
    monkeypatch.setattr(command, "QUICK_BATCHES", (8,))


@pytest.mark.slow
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "name, methods",
    [("nemotron_latent_mtp", {"mtp", "ngram", "custom"}), ("mamba2_g4", {"ngram", "custom"})],
)
def test_every_way_of_running_is_equal_and_said_so(folder, name, methods):
    tiny = folder(name)
    done = CliRunner().invoke(verify, [tiny, "--quick", "--max-tokens", "6"])
    assert done.exit_code == 0, done.output
    rows, counts, drafted = ROW.findall(done.output), defaultdict(int), defaultdict(int)
    preempted = defaultdict(set)
    for drafter, mode, start, preemptions, count, equal, cached, drafts, right in rows:
        assert count == equal
        assert (int(cached) > 0) == (mode != "none"), (mode, start)
        assert int(drafts) >= int(right)
        assert drafter != "none" or drafts == "0"
        counts[drafter != "none", mode, start] += int(count)
        preempted[drafter].add(int(preemptions) > 0)
        drafted[drafter] += int(drafts)
    assert set(counts.values()) == {4} and len(counts) == 2 * 3 * 3
    assert set(preempted) == {"none", *methods}
    assert all(both == {False, True} for both in preempted.values()), preempted
    assert all(drafted[method] for method in methods)
    assert done.stdout.splitlines()[-1] == f"{tiny} in float32: all 72 runs are equal"
    title = done.stdout.partition("┏")[0]
    assert tiny in "".join(title.split()) and "grid of 8" in " ".join(title.split())


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_difference_is_named_and_exits_with_1(folder, monkeypatch):
    true_outcomes, tiny = runs.outcomes, folder("nemotron_dense")

    def one_wrong(*arguments):
        for i, outcome in enumerate(true_outcomes(*arguments)):
            wrong = replace(
                outcome, equal=False, first_difference="prompt 3, new token 1: 5, not 6"
            )
            yield wrong if i == 38 else outcome

    monkeypatch.setattr(runs, "outcomes", one_wrong)
    done = CliRunner().invoke(verify, [tiny, "--quick", "--max-tokens", "1"])
    assert done.exit_code == 1
    assert "prompt 3, new token 1: 5, not 6" in done.output
    assert "mode='none'" in done.output and "method='ngram', drafts=1" in done.output
    assert done.stderr.splitlines()[-1] == f"{tiny} in float32: 1 of 72 runs are not equal"
    assert "are equal" not in done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags, most",
    [
        ((), 5),
        (("--spec-tokens", "2"), 5),
        (("--spec-method", "ngram", "--spec-tokens", "9"), 9),
        (("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 7}'), 7),
    ],
)
def test_pools_and_runs_have_the_largest_number_of_drafts(folder, monkeypatch, flags, most):
    """Up to 5 drafts run whatever is asked for, and what is asked for where it is more."""
    monkeypatch.setattr(command, "QUICK_BUDGETS", (64,))
    monkeypatch.setattr(command, "QUICK_BATCHES", (1,))
    monkeypatch.setattr(command, "QUICK_DRAFTS", (5,))
    seen = {}

    def nothing(engine, prompts, max_tokens, chosen):
        seen["engine"] = engine.config.most_drafts
        seen["runs"] = max(variant.drafts for variant in chosen)
        return iter(())

    monkeypatch.setattr(runs, "outcomes", nothing)
    done = CliRunner().invoke(verify, [folder("nemotron_dense"), "--quick", *flags])
    assert done.exit_code == 0, done.output
    assert seen == {"engine": most, "runs": most}


@pytest.mark.parametrize(
    "flags, part",
    [
        (
            ("--speculative-config", '{"num_speculative_tokens": 2}', "--spec-tokens", "3"),
            "spec_tokens is 3, but must be the same as speculative_config.num_speculative_tokens,",
        ),
        (("--spec-tokens", "0"), "num_speculative_tokens is 0"),
        (("--speculative-config", '{"num_speculative_tokens": true}'), "num_speculative_tokens is"),
    ],
)
def test_numbers_of_drafts_that_cannot_be_are_refused_as_they_were_given(run, folder, flags, part):
    code, out, err = run("verify", folder("nemotron_latent_mtp"), "--quick", *flags)
    assert code == 2 and out == ""
    assert part in one_line(err)
