"""`coachwhip generate` with drafts: the same text, every token of it, and what they brought."""

import json
import re

import pytest

from tests.cli.one_line import one_line
from tests.reference.checkpoints import write_checkpoint
from tests.reference.tiny_configs import TINY_CONFIGS

SUMMARY = re.compile(
    r"coachwhip: (\d+) tokens drafted, (\d+) accepted, acceptance length (\d+\.\d\d), "
    r"(\d+\.\d) tokens/s(; drafts did not pay and were left off \d+ times?)?"
)
STEADY = {"num_speculative_tokens": 3, "adaptive": False}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model with a draft head and without a tokenizer."""
    folder = tmp_path_factory.mktemp("mtp")
    write_checkpoint(folder, TINY_CONFIGS["nemotron_latent_mtp"])
    return str(folder)


def summary(err: str) -> re.Match[str]:
    """Returns the line on drafts, which must be the last one."""
    found = SUMMARY.fullmatch(err.splitlines()[-1])
    assert found, err
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mtp", "ngram"])
def test_token_ids_are_all_printed_where_a_step_brings_several(run, tiny, method):
    prompts = ("--prompt-ids", "1,2,3,1,2", "--prompt-ids", "7,7,7,7,7,7")
    command = ("generate", tiny, *prompts, "--max-tokens", "40", "--ignore-eos")
    # A text of four tokens, so that drafts are right at times.
    bias = ("--logit-bias", json.dumps({str(t): 20 for t in range(4)}))
    _, plain, err = run(*command, *bias)
    assert not SUMMARY.search(err)
    config = json.dumps({"method": method, **STEADY})
    code, drafted, err = run(*command, *bias, "--speculative-config", config)
    assert code == 0 and drafted == plain
    assert [len(line.split()) for line in drafted.splitlines()] == [40, 40]
    count, right, length, _, _ = summary(err).groups()
    assert int(count) > int(right) > 0
    assert 1.0 < float(length) <= 4.0


@pytest.mark.slow
def test_json_says_it_per_prompt_and_has_no_line_beside_it(run, tiny):
    command = ("generate", tiny, "--prompt-ids", "5,6,5,6,5", "--json", "--ignore-eos")
    flags = ("--spec-method", "ngram", "--spec-tokens", "2", "--max-tokens", "30")
    _, plain, _ = run(*command, "--max-tokens", "30")
    code, out, err = run(*command, *flags)
    got, want = json.loads(out), json.loads(plain)
    assert code == 0 and got["token_ids"] == want["token_ids"]
    assert want["num_drafted_tokens"] == 0
    assert got["num_drafted_tokens"] >= got["num_accepted_tokens"] >= 0
    assert "drafted" not in err


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [(), ("--temperature", "0.8", "--seed", "1")])
def test_the_small_model_writes_the_same_text_with_its_own_head(run, sampled):
    command = ("generate", "My fellow citizens,", "--max-tokens", "48", *sampled)
    code, plain, err = run(*command)
    assert code == 0 and not SUMMARY.search(err)
    config = json.dumps({"method": "mtp", **STEADY})
    code, drafted, err = run(*command, "--speculative-config", config)
    assert code == 0 and drafted == plain
    count, right, _, _, off = summary(err).groups()
    assert int(count) > int(right) > 10 and off is None


@pytest.mark.slow
def test_drafts_that_do_not_pay_are_said_to_be_left_off(run, monkeypatch):
    from coachwhip.speculate.control import DraftControl

    monkeypatch.setattr(DraftControl, "_best", lambda self, rate, times: 0)
    flags = ("--spec-method", "mtp", "--spec-tokens", "3", "--max-tokens", "30")
    code, _, err = run("generate", *flags)
    assert code == 0
    assert summary(err)[5] == "; drafts did not pay and were left off 1 time"


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--spec-method", "ngram"), "speculative_config.num_speculative_tokens is missing, "),
        (("--spec-tokens", "3"), "speculative_config.method is missing, "),
        (
            ("--spec-method", "mtp", "--spec-tokens", "3"),
            'speculative_config.method is "mtp", but must be ngram, ',
        ),
        (
            ("--speculative-config", '{"method": "ngram", "num_speculative_token": 3}'),
            "speculative_config.num_speculative_token is 3, ",
        ),
        (
            ("--speculative-config", '{"method": "ngram"}', "--spec-tokens", "0"),
            "speculative_config.num_speculative_tokens is 0, ",
        ),
    ],
)
def test_bad_flags_are_one_line_and_exit_code_2(run, tmp_path, flags, message):
    write_checkpoint(tmp_path, TINY_CONFIGS["nemotron_dense"])
    code, out, err = run("generate", str(tmp_path), "--prompt-ids", "1", *flags)
    assert code == 2 and out == ""
    assert one_line(err).startswith(f"coachwhip: error: {message}")
