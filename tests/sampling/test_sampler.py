"""What the sampling op gets of a request's rows, and how rows lie in the reused tensors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip import SamplingParams
from coachwhip.sampling.edits import NOTHING, LogitEdits
from coachwhip.sampling.guide import NOTHING_LEFT
from coachwhip.sampling.sampler import SampledRow, Sampler
from coachwhip.sampling.tensors import SamplingTensors

VOCAB = 100
PLAIN = ([0.0, 1.0, 0.0, 1.0, 0.0, 0.0], [0, 0, 0, 0])


def sampler(seed: int = 0, **values) -> Sampler:
    params = SamplingParams(**values)
    return Sampler(params, seed, LogitEdits(params, [3, 4]))


def test_a_row_has_the_settings_in_the_order_of_the_op():
    row = sampler(
        seed=(7 << 32) + 5,
        temperature=0.5,
        top_p=0.75,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        top_k=40,
    ).row(11)
    assert row.real == (0.5, 0.75, 0.125, 1.5, 0.25, -0.5)
    assert row.whole == (40, 5, 7, 11)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(-(2**63), 2**64 - 1))
def test_the_words_of_a_seed_are_its_lowest_64_bits(seed):
    low, high = np.array(sampler(seed).row(0).whole[1:3], np.int32).view(np.uint32).tolist()
    assert high << 32 | low == seed % 2**64


def test_drafts_move_the_edits_of_a_row_and_not_its_settings():
    one = sampler(frequency_penalty=1.0)
    first, second = one.row(5), one.row(6, (9,))
    assert first.real == second.real
    assert first.whole[:3] == second.whole[:3]
    assert (first.edits[0].tolist(), second.edits[0].tolist()) == ([], [9])


@pytest.mark.parametrize(
    "values, plain",
    [
        ({}, True),
        ({"top_p": 0.5, "top_k": 3, "min_p": 0.1}, True),  # the likeliest token always stays
        ({"temperature": 0.1}, False),
        ({"logit_bias": {1: 1}}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"min_tokens": 1}, False),
    ],
)
def test_a_request_is_plain_where_every_row_takes_the_largest_logit(values, plain):
    assert sampler(**values).plain is plain


class OneToken:
    """Stands for a `Guide` that allows one token, and none after a second one."""

    ended = False

    def __init__(self, token: int) -> None:
        self.token, self.appended = token, []

    def mask(self, drafts):
        words = np.zeros(4, np.int32)
        words[self.token // 32] = 1 << self.token % 32
        return words if len(drafts) < 2 else None

    def allowed(self, drafts):
        return next((i for i, t in enumerate(drafts) if t != self.token), len(drafts))

    def refusal(self, token):
        return None if token == self.token else "no"

    def append(self, token):
        self.appended.append(token)


def test_a_guide_gives_the_masks_and_judges_tokens_and_drafts():
    guide = OneToken(7)
    params = SamplingParams(bad_words=["any"])
    one = Sampler(params, 0, LogitEdits(params, [3], [(5, 0), (5, 7)]), guide)
    assert not one.plain and not one.ended
    assert one.row(1).mask.tolist() == [128, 0, 0, 0] and one.row(3, (7, 7)).mask is None
    assert one.useful([7, 7, 1, 7]) == [7, 7] and sampler().useful([1, 2]) == [1, 2]
    assert one.refusal(7) is None and one.refusal(1) == "no" and sampler().refusal(1) is None
    one.append(5)
    assert guide.appended == [5]
    assert one.row(2).edits[0].tolist() == [0, 7]  # the second word of each
    guide.token = 0
    # The op gives token 0 where nothing is left; here the grammar would take it.
    assert one.refusal(0) == NOTHING_LEFT


EDITS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(-1, 5), st.sampled_from([0.0, 2.5, -np.inf])),
    max_size=70,
)
ROWS = st.one_of(
    st.none(),
    st.builds(
        lambda real, whole, edits, mask: SampledRow(
            tuple(real),
            tuple(whole),
            tuple(
                np.array([e[part] for e in edits], dtype)
                for part, dtype in enumerate((np.int32, np.int32, np.float32))
            ),
            None if mask is None else np.array(mask, np.int32),
        ),
        st.lists(st.floats(0, 2, width=32), min_size=6, max_size=6),
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4),
        EDITS,
        # Of the model's own vocabulary, of a smaller or of a larger one.
        st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), min_size=3, max_size=5),
    ),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.lists(ROWS, max_size=12), min_size=1, max_size=4))
def test_rows_lie_one_after_another_whatever_the_step_before_left(steps):
    tensors = SamplingTensors(VOCAB)
    for rows in steps:
        arrays = tensors.lay_out(rows)
        real, whole, start, token, count, bias, mask_row, masks = arrays
        assert [a.dtype for a in arrays] == [
            *(np.float32, np.int32, np.int32, np.int32, np.int32, np.float32, np.int32, np.int32)
        ]
        assert real.shape == (len(rows), 6) and whole.shape == (len(rows), 4)
        assert all(a.flags.c_contiguous for a in arrays)
        assert start[0] == 0 and len(start) == len(rows) + 1
        assert len(token) == len(count) == len(bias) == start[-1]
        masked = sum(row is not None and row.mask is not None for row in rows)
        assert mask_row.shape == (len(rows),) and masks.shape == (max(1, masked), 4)
        assert sorted(mask_row[mask_row >= 0]) == list(range(masked))
        for i, row in enumerate(rows):
            want = (*PLAIN, NOTHING) if row is None else (row.real, row.whole, row.edits)
            assert real[i].tolist() == list(want[0])
            assert whole[i].tolist() == list(want[1])
            mine = slice(start[i], start[i + 1])
            for found, part in zip((token, count, bias), want[2], strict=True):
                assert np.array_equal(found[mine], part)
            if row is None or row.mask is None:
                assert mask_row[i] == -1
            else:
                assert masks[mask_row[i]].tolist() == [*row.mask.tolist(), 0, 0][:4]


def test_a_step_of_many_rows_and_edits_and_then_of_none():
    tensors, full = SamplingTensors(VOCAB), SamplingParams(repetition_penalty=1.1, max_tokens=None)
    edits = LogitEdits(full, range(3000))
    rows = [Sampler(full, 1, edits).row(i) for i in range(200)]
    _, _, start, token, count, bias, *_ = tensors.lay_out(rows)
    assert start.tolist() == list(range(0, 600_001, 3000))
    assert sorted(token[:3000].tolist()) == list(range(3000))
    assert not count.any() and not bias.any()
    for rows in ([None], []):
        _, _, start, token, count, bias, *_ = tensors.lay_out(rows)
        assert start.tolist() == [0] * (len(rows) + 1)
        assert len(token) == len(count) == len(bias) == 0


def test_buffers_are_used_again():
    tensors, row = SamplingTensors(VOCAB), sampler(logit_bias={5: 1.0}).row(0)
    first = tensors.lay_out([row] * 20)
    second = tensors.lay_out([None, row])
    assert all(map(np.shares_memory, first, second))


def test_plain_rows_again_take_what_is_laid_out_already():
    tensors, row = SamplingTensors(VOCAB), sampler(logit_bias={5: 1.0}).row(0)
    first = [a.copy() for a in tensors.lay_out([None, None])]
    assert tensors.lay_out([None, None]) is tensors.lay_out([None, None])
    for between in ([row, None], [None], [row] * 40, []):
        tensors.lay_out(between)
        again = tensors.lay_out([None, None])
        assert all(map(np.array_equal, again, first))
