"""`LogitEdits` against counting and matching anew in the whole text, for every row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip import SamplingParams
from coachwhip.sampling.edits import NOTHING, LogitEdits
from tests.sampling.plain_edits import effective, expected

TOKENS = st.integers(0, 6)
TEXTS = st.lists(TOKENS, max_size=8)
WORDS = st.lists(st.lists(TOKENS, min_size=1, max_size=4).map(tuple), max_size=4)
ENDS = st.lists(TOKENS, max_size=2, unique=True)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.none(),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from([-100.0, -1.5, 2.0]), max_size=3),
    min_tokens=st.integers(0, 6),
)
CALLS = st.lists(st.one_of(TOKENS, TEXTS), max_size=12)
"""A token that is appended, or drafts after which the edits are asked for."""


@settings(max_examples=300, deadline=None, derandomize=True)
@given(PARAMS, TEXTS, WORDS, ENDS, CALLS)
def test_every_row_has_the_edits_of_its_whole_text(params, prompt, words, ends, calls):
    edits, text, given_out = LogitEdits(params, prompt, words, ends), [], []
    for call in calls:
        if isinstance(call, int):
            edits.append(call)
            text.append(call)
            call = []
        rows = [call[:i] for i in range(len(call) + 1)]
        for drafts in rows:
            found = edits.after(drafts)
            assert [a.dtype for a in found] == [np.int32, np.int32, np.float32]
            want = expected(params, prompt, words, ends, [*text, *drafts])
            assert effective(found) == want
            assert edits.any or not want
            given_out.append((found, [a.copy() for a in found]))
    # The rows of a step are laid out together, after all of them were asked for.
    for found, copies in given_out:
        assert all(map(np.array_equal, found, copies))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(PARAMS, TEXTS, WORDS, ENDS, TEXTS, TEXTS, TEXTS)
def test_asking_for_drafts_leaves_nothing(params, prompt, words, ends, text, wrong, more):
    """Rejected drafts must not be counted, nor be the beginning of a bad word."""
    asked, quiet = (LogitEdits(params, prompt, words, ends) for _ in range(2))
    for token in text:
        asked.append(token)
        quiet.append(token)
    before = asked.after()
    asked.after(wrong)
    assert all(map(np.array_equal, asked.after(), before))
    for token in more:
        asked.after(wrong)
        asked.append(token)
        quiet.append(token)
        assert effective(asked.after()) == effective(quiet.after())
        assert effective(asked.after(wrong)) == effective(quiet.after(wrong))


def biases(edits: LogitEdits, drafts=()) -> dict[int, float]:
    return {token: bias for token, (_, bias) in effective(edits.after(drafts)).items()}


@pytest.mark.parametrize(
    "text, drafts", [((1, 2, 3), ()), ((1, 2), (3,)), ((1,), (2, 3)), ((), (1, 2, 3))]
)
def test_a_bad_word_of_four_tokens_across_the_border_of_text_and_drafts(text, drafts):
    edits = LogitEdits(SamplingParams(), [9, 1, 2], [(1, 2, 3, 4)])
    for token in text:
        edits.append(token)
    assert biases(edits, drafts) == {4: -np.inf}
    assert biases(edits, [*drafts, 5]) == {}


def test_a_bad_word_does_not_begin_in_the_prompt():
    assert biases(LogitEdits(SamplingParams(), [1, 2], [(1, 2, 3)])) == {}


def test_a_forbidden_token_stays_forbidden_whatever_its_bias():
    edits = LogitEdits(SamplingParams(logit_bias={4: 100.0, 5: 1.0}), [], [(4,)])
    assert biases(edits) == {4: -np.inf, 5: 1.0}


def test_ends_are_forbidden_for_exactly_min_tokens_tokens():
    edits = LogitEdits(SamplingParams(min_tokens=3), [], (), [7, 8])
    for drafts in ([], [1], [1, 1]):
        assert biases(edits, drafts) == {7: -np.inf, 8: -np.inf}
    assert biases(edits, [1, 1, 1]) == {}
    edits.append(1)
    assert biases(edits, [1]) == {7: -np.inf, 8: -np.inf}
    assert biases(edits, [1, 1]) == {}


def test_the_prompt_counts_for_the_repetition_penalty_alone():
    edits = LogitEdits(SamplingParams(repetition_penalty=1.2), [5, 5, 6])
    edits.append(6)
    assert effective(edits.after([7, 7])) == {5: (0, 0.0), 6: (1, 0.0), 7: (2, 0.0)}
    edits = LogitEdits(SamplingParams(presence_penalty=1.0), [5, 5, 6])
    edits.append(6)
    assert effective(edits.after([7])) == {6: (1, 0.0), 7: (1, 0.0)}


def test_without_any_edit_there_is_nothing_to_lay_out():
    edits = LogitEdits(SamplingParams(temperature=1.0, top_p=0.5), [1, 2], (), [2])
    edits.append(1)
    assert not edits.any and edits.after([1, 2]) is NOTHING
    assert effective(NOTHING) == {}
