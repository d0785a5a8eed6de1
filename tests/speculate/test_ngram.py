"""Prompt lookup against a search in plain lists, and what the drafter keeps of each request."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.speculate.ngram import NgramDrafter, continuation
from tests.speculate.drafting import request, step


def searched(text: list[int], count: int, least: int, most: int) -> list[int]:
    """Tries every n-gram from the longest, at every place from the last; reads on in the drafts."""
    for size in range(min(most, len(text) - 1), least - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):  # the occurrence ends before `end`
            if text[end - size : end] == text[len(text) - size :]:
                known = list(text)
                for at in range(end, end + count):
                    known.append(known[at])
                return known[len(text) :]
    return []


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(0, 6),
)
def test_drafts_are_those_of_a_plain_search(text, count, least, more):
    found = continuation(np.array(text, np.int32), count, least, least + more)
    assert found == searched(text, count, least, least + more)
    assert all(type(token) is int for token in found)


@pytest.mark.parametrize(
    "text, count, least, most, drafts",
    [
        ([5], 3, 1, 4, []),
        ([5, 6, 7], 3, 1, 4, []),
        ([5, 6, 7, 5], 2, 1, 4, [6, 7]),
        ([5, 6, 7, 5], 5, 1, 4, [6, 7, 5, 6, 7]),  # reads on in its own drafts
        ([5, 5], 3, 1, 4, [5, 5, 5]),
        ([1, 9, 1, 8, 1], 1, 1, 4, [8]),  # the latest
        ([1, 2, 7, 3, 2, 8, 1, 2], 1, 1, 4, [7]),  # the longest before the latest
        ([1, 2, 7, 3, 2, 8, 1, 2], 1, 1, 1, [8]),  # no longer than `most`
        ([1, 2, 7, 3, 2, 8, 1, 2], 1, 2, 4, [7]),
        ([3, 2, 8, 1, 2], 1, 2, 4, []),  # no shorter than `least`
        ([1, 2, 3, 1, 2, 3], 2, 3, 3, [1, 2]),
        ([1, 2, 3, 1, 2, 3], 2, 4, 4, []),
    ],
)
def test_which_occurrence_counts(text, count, least, most, drafts):
    assert continuation(np.array(text, np.int32), count, least, most) == drafts


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=90), min_size=1, max_size=5),
)
def test_a_text_that_grows_is_read_to_its_end(prompt, pieces):
    drafter, growing = NgramDrafter(1, 3), request("a", prompt)
    for piece in pieces:
        growing.output_token_ids += piece
        want = searched([*prompt, *growing.output_token_ids], 4, 1, 3)
        assert drafter.propose(step([growing], 4)) == ({"a": want} if want else {})


def test_the_beginning_of_a_long_text_is_still_known():
    drafter, growing = NgramDrafter(1, 3), request("a", [9000, 9001, 9002])
    for begin in range(0, 2000, 40):
        growing.output_token_ids += range(begin, begin + 40)
        assert drafter.propose(step([growing], 1)) == {}
    growing.output_token_ids.append(9000)
    assert drafter.propose(step([growing], 3)) == {"a": [9001, 9002, 0]}


def test_each_request_is_drafted_from_its_own_text_and_number():
    drafter = NgramDrafter(1, 4)
    requests = [request("a", [1, 2, 3, 1]), request("b", [4, 5], [6, 4]), request("c", [7, 8])]
    assert drafter.propose(step(requests, {"a": 1, "b": 3, "c": 2})) == {"a": [2], "b": [5, 6, 4]}
    assert drafter.propose(step(requests, {"b": 1})) == {"b": [5]}


def test_an_id_may_name_another_request_once_it_is_forgotten():
    drafter = NgramDrafter(1, 4)
    first = request("a", [1, 2, 1])
    assert drafter.propose(step([first], 1)) == {"a": [2]}
    drafter.forget("a")
    assert drafter.propose(step([request("a", [1, 7, 1])], 1)) == {"a": [7]}
    drafter.forget("a")
    drafter.forget("never seen")
    assert drafter.propose(step([request("a", [3, 4])], 1)) == {}
