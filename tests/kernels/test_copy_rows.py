"""Copies of slots and pages: exact bits, and nothing else changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max.engine import Model

from tests.kernels.arrays import Typed, assert_same_bits, indices, run, typed
from tests.kernels.op_graphs import COPY, CopyConfig
from tests.kernels.properties import PROPERTY, SEEDS
from tests.reference.copy_rows import copy_rows

by_name = pytest.mark.parametrize("config", COPY, ids=lambda c: c.name)


def random_pool(config: CopyConfig, rows: int, values: int, seed: int) -> Typed:
    """A pool in which some values are NaN and infinite: a copy keeps them."""
    rng = np.random.default_rng(seed)
    pool = rng.standard_normal((rows, values))
    pool[rng.random(pool.shape) < 0.1] = np.nan
    pool[rng.random(pool.shape) < 0.1] = -np.inf
    return typed(pool, config.pool)


@by_name
def test_matches_reference(models: dict[str, Model], config: CopyConfig) -> None:
    @PROPERTY
    @given(
        rows=st.permutations(range(12)),
        copies=st.integers(0, 6),
        sources=st.lists(st.integers(0, 5), min_size=6, max_size=6),
        values=st.sampled_from([0, 1, 7, 16, 1000, 8193]),
        seed=SEEDS,
    )
    def holds(rows: list[int], copies: int, sources: list[int], values: int, seed: int) -> None:
        pool = random_pool(config, 12, values, seed)
        before = pool.copy()
        # Any of six rows, also several times, to six others.
        source = np.array([rows[s] for s in sources[:copies]], int)
        destination = np.array(rows[6 : 6 + copies], int)
        run(models[config.name], pool, indices(source), indices(destination))
        want = Typed(copy_rows(before.stored, source, destination), config.pool)
        assert_same_bits(pool, want, "pool")

    holds()


@by_name
def test_a_row_may_go_to_itself(models: dict[str, Model], config: CopyConfig) -> None:
    pool = random_pool(config, 3, 50, seed=0)
    before = pool.copy()
    run(models[config.name], pool, indices([1]), indices([1]))
    assert_same_bits(pool, before, "pool")


@pytest.mark.parametrize(
    ("source", "destination", "message"),
    [
        ([0, 4], [1, 2], r"source\[1\] is 4, outside \[0, 4\)"),
        ([-1, 0], [1, 2], r"source\[0\] is -1, outside \[0, 4\)"),
        ([0, 1], [2, 7], r"destination\[1\] is 7, outside \[0, 4\)"),
        ([0, 1], [-3, 2], r"destination\[0\] is -3, outside \[0, 4\)"),
        ([0, 1], [2], r"destination\.shape\[0\] is 1, expected 2"),
    ],
    ids=["source-high", "source-low", "destination-high", "destination-low", "lengths"],
)
def test_wrong_rows_are_refused(
    models: dict[str, Model], source: list[int], destination: list[int], message: str
) -> None:
    """The message names tensor, place, value and range; pool and model stay as they were."""
    config = COPY[0]
    pool = random_pool(config, 4, 20, seed=0)
    before = pool.copy()
    with pytest.raises(ValueError, match=rf"coachwhip\.copy_rows: {message}"):
        run(models[config.name], pool, indices(source), indices(destination))
    assert_same_bits(pool, before, "pool")
    run(models[config.name], pool, indices([0]), indices([3]))
    assert_same_bits(pool.rows(3, 4), before.rows(0, 1), "row")
