"""When a text ends: end tokens, stop strings and limits, and what `min_tokens` puts off."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip import SamplingParams
from coachwhip.stopping import StopChecker

EOS, STOP, OTHER = 2, 7, 5


def checker(max_tokens: int = 10, **values) -> StopChecker:
    return StopChecker(SamplingParams(max_tokens=None, **values), [EOS], max_tokens)


@pytest.mark.parametrize("least", [0, 1, 3])
@pytest.mark.parametrize("token, reason", [(EOS, None), (STOP, STOP)])
def test_end_tokens_count_from_min_tokens_on(least, token, reason):
    check = checker(min_tokens=least, stop_token_ids=[STOP])
    for count in range(1, 10):
        ended = check.after_token(token, count)
        assert ended == (("stop", reason) if count >= least else None)
        assert check.after_token(OTHER, count) is None


def test_the_limit_counts_whatever_min_tokens_is():
    check = checker(4, min_tokens=6)
    assert [check.after_token(OTHER, n) for n in (1, 3, 4)] == [None, None, ("length", None)]
    assert check.after_token(EOS, 4) == ("length", None)


def test_an_end_token_at_the_limit_is_a_stop():
    assert checker(4).after_token(EOS, 4) == ("stop", None)


def test_end_tokens_may_be_ignored_and_stop_tokens_not():
    check = checker(ignore_eos=True, stop_token_ids=[STOP])
    assert check.after_token(EOS, 1) is None
    assert check.after_token(STOP, 2) == ("stop", STOP)


def test_a_token_of_both_kinds_is_named_as_a_stop_token():
    assert checker(stop_token_ids=[EOS]).after_token(EOS, 1) == ("stop", EOS)


@pytest.mark.parametrize(
    "stops, text, kept, stop",
    [
        (["b"], "abc", "a", "b"),
        (["c", "b"], "abc", "a", "b"),  # the first in the text
        (["bc", "b"], "abc", "a", "b"),
        (["x"], "abc", "abc", None),
        ([], "abc", "abc", None),
        (["abc"], "abc", "", "abc"),
    ],
)
def test_the_text_ends_before_the_first_stop_string(stops, text, kept, stop):
    assert checker(stop=stops).cut(text, 1) == (kept, stop)


def test_a_stop_string_that_was_complete_before_min_tokens_is_part_of_the_text():
    check = checker(stop=["ab"], min_tokens=3)
    assert check.cut("ab", 1) == ("ab", None)
    assert check.cut("abx", 2) == ("abx", None)
    assert check.cut("abxa", 3) == ("abxa", None)
    assert check.cut("abxab", 4) == ("abx", "ab")


def test_a_stop_string_may_begin_before_min_tokens_and_end_after_it():
    check = checker(stop=["abc"], min_tokens=3)
    assert check.cut("xab", 2) == ("xab", None)
    assert check.cut("xabc", 3) == ("x", "abc")


def test_a_longer_stop_string_does_not_bring_a_shorter_one_back():
    check = checker(stop=["a", "aaaa"], min_tokens=2)
    assert check.cut("xa", 1) == ("xa", None)
    assert check.cut("xab", 2) == ("xab", None)


STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)
PIECES = st.lists(st.text("abc", max_size=4), max_size=10)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(STOPS, PIECES, st.integers(0, 4))
def test_a_growing_text_ends_where_a_stop_string_first_ends_from_min_tokens_on(
    stops, pieces, least
):
    check, text = checker(stop=stops, min_tokens=least), ""
    for count, piece in enumerate(pieces, 1):
        before, text = text, text + piece
        # Ends in this piece; what ended in an earlier one had its chance.
        ends = [
            (at, stop)
            for stop in stops
            for at in range(len(text))
            if text.startswith(stop, at) and at + len(stop) > len(before)
        ]
        want = (text, None)
        if ends and count >= least:
            at, stop = min(ends)
            want = (text[:at], stop)
        assert check.cut(text, count) == want
        if want[1] is not None:
            return
