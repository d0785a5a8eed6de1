"""`SamplingParams` takes what vLLM's does, and refuses the rest with the field and its value."""

import math
from dataclasses import fields

import pytest

from coachwhip import RequestError, SamplingParams

VLLM_DEFAULTS = {
    "max_tokens": 16,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "min_tokens": 0,
    "stop_token_ids": (),
    "stop": (),
    "bad_words": (),
    "ignore_eos": False,
    "logprobs": None,
    "prompt_logprobs": None,
}
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
WHOLE = ("max_tokens", "top_k", "seed", "min_tokens", "logprobs", "prompt_logprobs")


def refused(**values: object) -> str:
    """Returns the message about the only field given, which must name it and begin with it."""
    ((name, _),) = values.items()
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values)
    message = str(caught.value)
    assert caught.value.field.partition(".")[0] == name
    assert message.startswith(name) and len(message.splitlines()) == 1
    return message


def test_defaults_are_those_of_vllm_but_greedy():
    params = SamplingParams()
    ours = {f.name: getattr(params, f.name) for f in fields(params)}
    # One prompt gives one text unless sampling is asked for; vLLM's temperature is 1.
    assert ours.pop("temperature") == 0.0
    # vLLM has no such fields.
    assert ours.pop("speculative_config") is None and ours.pop("grammar") is None
    assert ours == VLLM_DEFAULTS


@pytest.mark.parametrize(
    "name, inside, outside",
    [
        ("max_tokens", (1, 10**9, None), (0, -1)),
        ("temperature", (0, 0.0, 1, 1e-9, 100.0), (-0.001, -1)),
        ("top_p", (1e-9, 0.5, 1, 1.0), (0, 0.0, -0.1, 1.0001, 2)),
        ("top_k", (-1, 0, 1, 2**31 - 1), (-2, 2**31)),
        ("min_p", (0, 0.0, 0.5, 1), (-0.1, 1.01)),
        ("seed", (0, -1, -(2**63), 2**64 - 1, None), (2**64, -(2**63) - 1)),
        ("presence_penalty", (-2, 0, 2.0), (-2.1, 2.1)),
        ("frequency_penalty", (-2, 0, 2.0), (-2.1, 2.1)),
        ("repetition_penalty", (0.01, 1, 50.0), (0, 0.0, -1)),
        ("min_tokens", (0, 16), (-1,)),
        ("logprobs", (0, 20, None), (-1, 21)),
        ("prompt_logprobs", (0, 20, None), (-1, 21)),
        ("stop_token_ids", ((), [5], {7}, None), (-1, [-1], [1.0], ["a"], [True], "5")),
        ("stop", ("a", ["a"] * 4, (), None), ("", ["a", ""], ["a"] * 5, [1], 1, {"a": 1})),
        ("bad_words", ("a", ["a"] * 50, (), None), ("", ["a", ""], [1], 1)),
        (
            "logit_bias",
            ({}, {0: 1}, {5: -100.0, 6: 100}, None),
            ({-1: 0.0}, {1: 100.5}, {1: -101}, {1: "x"}, {1: None}, {1.5: 0}, {"a": 0}, [1], 3),
        ),
        (
            "speculative_config",
            ({"num_speculative_tokens": 0}, {"num_speculative_tokens": 3}, None),
            ({}, {"method": "mtp"}, {"num_speculative_tokens": 1, "method": "mtp"}, 3, [3]),
        ),
    ],
)
def test_every_field_takes_its_range_and_nothing_else(name, inside, outside):
    for value in inside:
        SamplingParams(**{name: value})
    for value in outside:
        refused(**{name: value})


@pytest.mark.parametrize(
    "values, message",
    [
        ({"max_tokens": 0}, "max_tokens is 0: give a whole number from 1, or None"),
        ({"temperature": -0.5}, "temperature is -0.5: give a number from 0"),
        ({"top_p": 1.5}, "top_p is 1.5: give a number above 0 to 1"),
        ({"top_k": -2}, "top_k is -2: give a whole number from -1 to 2147483647"),
        ({"min_p": 2}, "min_p is 2: give a number from 0 to 1"),
        ({"presence_penalty": 3}, "presence_penalty is 3: give a number from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0: give a number above 0"),
        ({"stop": [""]}, 'stop is [""]: give up to 4 non-empty strings'),
        ({"bad_words": [""]}, 'bad_words is [""]: give non-empty strings'),
        ({"min_tokens": 17}, "min_tokens is 17: give at most max_tokens, 16"),
        (
            {"logit_bias": {5: 101}},
            'logit_bias is {"5": 101}: give {token id: number from -100 to 100}',
        ),
        (
            {"speculative_config": {"num_speculative_tokens": -1}},
            "speculative_config.num_speculative_tokens is -1: give a whole number from 0",
        ),
    ],
)
def test_messages_name_field_value_and_what_may_be_given(values, message):
    assert refused(**values) == message


@pytest.mark.parametrize("name", [*NUMBERS, "repetition_penalty"])
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 10**400, True, False, "1", None, [1.0]]
)
def test_numbers_are_finite_and_neither_booleans_nor_text(name, value):
    refused(**{name: value})


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0, True, False, "1", [1]])
def test_whole_numbers_are_neither_floats_booleans_nor_text(name, value):
    refused(**{name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True])
def test_biases_and_numbers_of_drafts_are_checked_within(value):
    assert "logit_bias is " in refused(logit_bias={3: 1.0, 4: value})
    assert "num_speculative_tokens" in refused(speculative_config={"num_speculative_tokens": value})


def test_logit_bias_may_have_the_keys_of_json():
    params = SamplingParams(logit_bias={"17": 1, 3: -2.5})
    assert params.logit_bias == {17: 1.0, 3: -2.5}
    assert all(isinstance(v, float) for v in params.logit_bias.values())
    for key in ("-1", "1.0", " 1", "", "x"):
        refused(logit_bias={key: 1.0})


def test_one_string_is_a_list_of_one_and_sequences_become_tuples():
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(bad_words="ab").bad_words == ("ab",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop_token_ids=[4, 5]).stop_token_ids == (4, 5)
    assert SamplingParams(stop=None, bad_words=None, stop_token_ids=None) == SamplingParams()


def test_a_top_k_of_minus_one_is_all():
    assert SamplingParams(top_k=-1).top_k == 0


def test_min_tokens_may_be_any_number_without_max_tokens():
    assert SamplingParams(max_tokens=None, min_tokens=10**6).min_tokens == 10**6


@pytest.mark.parametrize(
    "values, penalizes",
    [
        ({}, False),
        ({"presence_penalty": -1.0}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"repetition_penalty": 0.9}, True),
        ({"logit_bias": {1: 2.0}, "min_tokens": 3, "bad_words": ["a"]}, False),
    ],
)
def test_whether_logits_depend_on_the_text(values, penalizes):
    assert SamplingParams(**values).penalizes is penalizes


def test_drafts_of_a_request():
    assert SamplingParams().most_drafts is None
    for count in (0, 3):
        params = SamplingParams(speculative_config={"num_speculative_tokens": count})
        assert params.most_drafts == count
