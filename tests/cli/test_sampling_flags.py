"""The flags of sampling, as `generate` and `chat` take them."""

import json

import pytest

from coachwhip import LLM, SamplingParams
from tests.cli.one_line import one_line

PROMPT = "The state of the Union is"
COUNT = 12


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    "flag, value, message",
    [
        ("--temperature", "-1", "temperature is -1.0: "),
        ("--top-p", "1.5", "top_p is 1.5: "),
        ("--top-k", "-2", "top_k is -2: "),
        ("--min-p", "2", "min_p is 2.0: "),
        ("--presence-penalty", "2.5", "presence_penalty is 2.5: "),
        ("--frequency-penalty", "-3", "frequency_penalty is -3.0: "),
        ("--repetition-penalty", "0", "repetition_penalty is 0.0: "),
        ("--logit-bias", '{"5": 101}', 'logit_bias is {"5": 101}: '),
        ("--logit-bias", '{"five": 1}', 'logit_bias is {"five": 1}: '),
        ("--bad-word", "", 'bad_words is [""]: '),
        ("--min-tokens", "1000", "min_tokens is 1000: give at most max_tokens, "),
        ("--temperature", "nan", "temperature is NaN: "),
    ],
)
def test_each_flag_sets_its_parameter_which_is_checked_before_anything_loads(
    run, command, flag, value, message
):
    code, out, err = run(command, "no/such-model", flag, value)
    assert code == 2 and out == ""
    assert one_line(err).startswith(f"coachwhip: error: {message}")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "flag, value, part",
    [
        ("--logit-bias", "5:1", "no JSON"),
        ("--logit-bias", "[5, 1]", "no JSON object"),
        ("--speculative-config", "{'method': 'ngram'}", "no JSON"),
        ("--speculative-config", '"ngram"', "no JSON object"),
        ("--temperature", "warm", "not a valid float"),
        ("--top-k", "1.5", "not a valid integer"),
    ],
)
def test_what_cannot_be_read_names_the_flag(run, flag, value, part):
    code, out, err = run("generate", flag, value)
    assert code == 2 and out == "" and "Traceback" not in err
    assert f"Invalid value for '{flag}': " in err and part in err


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_what_the_model_refuses_is_said_before_its_weights_load(run, command):
    code, out, err = run(command, "--logit-bias", '{"5": 1, "999999": 1}')
    assert code == 2 and out == ""
    assert 'logit_bias is {"999999": 1.0}: the vocabulary has ids 0 to ' in one_line(err)
    assert len(err.splitlines()) == 1  # nothing was compiled


@pytest.fixture(scope="module")
def llm():
    return LLM(seed=5)


@pytest.mark.slow
def test_sampled_texts_are_those_of_the_seed(run, llm):
    flags = ["--temperature", "0.9", "--top-p", "0.95", "--top-k", "50", "--min-p", "0.01"]
    flags += ["--max-tokens", str(COUNT)]
    texts = {}
    for seed in ("5", "6"):
        for again in range(2):
            code, out, _ = run("generate", PROMPT, *flags, "--seed", seed)
            assert code == 0
            texts[seed, again] = out
    assert texts["5", 0] == texts["5", 1] != texts["6", 0] == texts["6", 1]
    params = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, min_p=0.01, max_tokens=COUNT)
    (want,) = LLM(seed=5).generate(PROMPT, params)
    assert texts["5", 0] == f"{PROMPT}{want.outputs[0].text}\n"
    (greedy,) = llm.generate(PROMPT, SamplingParams(max_tokens=COUNT))
    assert greedy.outputs[0].text != want.outputs[0].text


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags, params",
    [
        (
            ["--presence-penalty", "1.5", "--frequency-penalty", "0.5"],
            {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        ),
        (["--repetition-penalty", "1.7"], {"repetition_penalty": 1.7}),
        (["--bad-word", "of", "--bad-word", "the"], {"bad_words": ["of", "the"]}),
    ],
)
def test_edits_of_logits_are_those_of_the_parameters(run, llm, flags, params):
    """In JSON, as `generate` gives it."""
    code, out, _ = run("generate", PROMPT, "--json", "--max-tokens", "40", *flags)
    assert code == 0
    got = json.loads(out)["token_ids"]
    want, plain = llm.generate(
        [PROMPT] * 2, [SamplingParams(max_tokens=40, **params), SamplingParams(max_tokens=40)]
    )
    assert got == want.outputs[0].token_ids != plain.outputs[0].token_ids


@pytest.mark.slow
def test_a_biased_token_is_not_written_and_min_tokens_puts_a_stop_off(run, llm):
    (plain,) = llm.generate(PROMPT, SamplingParams(max_tokens=COUNT))
    first = plain.outputs[0].token_ids[0]
    bias = json.dumps({str(first): -100})
    code, out, _ = run("generate", PROMPT, "--json", "--max-tokens", "1", "--logit-bias", bias)
    assert code == 0 and json.loads(out)["token_ids"] != [first]
    counts = []
    for least in ("0", "6"):
        flags = ("--stop", "e", "--min-tokens", least, "--max-tokens", "40")
        code, out, _ = run("generate", PROMPT, "--json", *flags)
        found = json.loads(out)
        assert code == 0 and found["finish_reason"] == "stop"
        counts.append(len(found["token_ids"]))
    assert counts[0] < 6 <= counts[1]
