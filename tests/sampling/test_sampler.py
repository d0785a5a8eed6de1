"""What the sampling op gets of a request's rows, and how rows lie in the reused tensors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip import SamplingParams
from coachwhip.sampling.edits import NOTHING, LogitEdits
from coachwhip.sampling.sampler import SampledRow, Sampler
from coachwhip.sampling.tensors import SamplingTensors

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


EDITS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(-1, 5), st.sampled_from([0.0, 2.5, -np.inf])),
    max_size=70,
)
ROWS = st.one_of(
    st.none(),
    st.builds(
        lambda real, whole, edits: SampledRow(
            tuple(real),
            tuple(whole),
            tuple(
                np.array([e[part] for e in edits], dtype)
                for part, dtype in enumerate((np.int32, np.int32, np.float32))
            ),
        ),
        st.lists(st.floats(0, 2, width=32), min_size=6, max_size=6),
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4),
        EDITS,
    ),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.lists(ROWS, max_size=12), min_size=1, max_size=4))
def test_rows_lie_one_after_another_whatever_the_step_before_left(steps):
    tensors = SamplingTensors()
    for rows in steps:
        real, whole, start, token, count, bias = tensors.lay_out(rows)
        assert [a.dtype for a in (real, whole, start, token, count, bias)] == [
            *(np.float32, np.int32, np.int32, np.int32, np.int32, np.float32)
        ]
        assert real.shape == (len(rows), 6) and whole.shape == (len(rows), 4)
        assert all(a.flags.c_contiguous for a in (real, whole, start, token, count, bias))
        assert start[0] == 0 and len(start) == len(rows) + 1
        assert len(token) == len(count) == len(bias) == start[-1]
        for i, row in enumerate(rows):
            want = (*PLAIN, NOTHING) if row is None else (row.real, row.whole, row.edits)
            assert real[i].tolist() == list(want[0])
            assert whole[i].tolist() == list(want[1])
            mine = slice(start[i], start[i + 1])
            for found, part in zip((token, count, bias), want[2], strict=True):
                assert np.array_equal(found[mine], part)


def test_a_step_of_many_rows_and_edits_and_then_of_none():
    tensors, full = SamplingTensors(), SamplingParams(repetition_penalty=1.1, max_tokens=None)
    edits = LogitEdits(full, range(3000))
    rows = [Sampler(full, 1, edits).row(i) for i in range(200)]
    *_, start, token, count, bias = tensors.lay_out(rows)
    assert start.tolist() == list(range(0, 600_001, 3000))
    assert sorted(token[:3000].tolist()) == list(range(3000))
    assert not count.any() and not bias.any()
    for rows in ([None], []):
        *_, start, token, count, bias = tensors.lay_out(rows)
        assert start.tolist() == [0] * (len(rows) + 1)
        assert len(token) == len(count) == len(bias) == 0


def test_buffers_are_used_again():
    tensors, row = SamplingTensors(), sampler(logit_bias={5: 1.0}).row(0)
    first = tensors.lay_out([row] * 20)
    second = tensors.lay_out([None, row])
    assert all(map(np.shares_memory, first, second))
