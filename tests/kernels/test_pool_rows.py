"""Rows of a pool to and from a tensor: exact bits, -1 for no row, and nothing else changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max.engine import Model

from tests.kernels.arrays import Typed, assert_same_bits, indices, run, typed
from tests.kernels.op_graphs import LOAD, STORE, LoadConfig, StoreConfig
from tests.kernels.properties import PROPERTY, SEEDS
from tests.reference.pool_rows import load_rows, store_rows

WIDTHS = st.sampled_from([0, 1, 7, 16, 1000, 8193])
ROWS = 9
by_name = {"ids": lambda c: c.name}


def random_rows(config: LoadConfig | StoreConfig, rows: int, width: int, seed: int) -> Typed:
    """Rows in which some values are NaN and infinite: a copy keeps them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, width))
    values[rng.random(values.shape) < 0.1] = np.nan
    values[rng.random(values.shape) < 0.1] = -np.inf
    return typed(values, config.pool)


@pytest.mark.parametrize("config", LOAD, **by_name)
def test_load_matches_reference(models: dict[str, Model], config: LoadConfig) -> None:
    @PROPERTY
    @given(index=st.lists(st.integers(-1, ROWS - 1), max_size=20), width=WIDTHS, seed=SEEDS)
    def holds(index: list[int], width: int, seed: int) -> None:
        pool = random_rows(config, ROWS, width, seed)
        before = pool.copy()
        got = run(models[config.name], pool, indices(index))
        want = load_rows(before.stored, np.array(index, int))
        assert_same_bits(got, Typed(want, config.pool), "rows")
        assert_same_bits(pool, before, "pool")

    holds()


@pytest.mark.parametrize("config", STORE, **by_name)
def test_store_matches_reference(models: dict[str, Model], config: StoreConfig) -> None:
    @PROPERTY
    @given(
        rows=st.permutations(range(ROWS)),
        dropped=st.lists(st.booleans(), max_size=ROWS),
        width=WIDTHS,
        seed=SEEDS,
    )
    def holds(rows: list[int], dropped: list[bool], width: int, seed: int) -> None:
        pool = random_rows(config, ROWS, width, seed)
        values = random_rows(config, len(dropped), width, seed + 1)
        index = np.array([-1 if no else r for r, no in zip(rows, dropped, strict=False)], int)
        want = store_rows(pool.stored, values.stored, index)
        run(models[config.name], pool, values, indices(index))
        assert_same_bits(pool, Typed(want, config.pool), "pool")

    holds()


@pytest.mark.parametrize(("index", "value"), [([0, 4], 4), ([0, -2], -2)], ids=["high", "low"])
def test_wrong_rows_are_refused(models: dict[str, Model], index: list[int], value: int) -> None:
    """The message names tensor, place, value and range; pool and model stay as they were."""
    pool = random_rows(LOAD[0], 4, 20, seed=0)
    before = pool.copy()
    message = rf"index\[1\] is {value}, outside \[-1, 4\)"
    with pytest.raises(ValueError, match=rf"coachwhip\.load_rows: {message}"):
        run(models[LOAD[0].name], pool, indices(index))
    values = random_rows(STORE[0], 2, 20, seed=1)
    with pytest.raises(ValueError, match=rf"coachwhip\.store_rows: {message}"):
        run(models[STORE[0].name], pool, values, indices(index))
    assert_same_bits(pool, before, "pool")
    run(models[STORE[0].name], pool, values, indices([3, -1]))
    assert_same_bits(pool.rows(3, 4), values.rows(0, 1), "row")


@pytest.mark.parametrize(
    ("shape", "message"),
    [((2, 19), r"values\.shape\[1\] is 19, expected 20"), ((3, 20), r"values\.shape\[0\] is 3")],
    ids=["width", "rows"],
)
def test_values_of_another_shape_are_refused(
    models: dict[str, Model], shape: tuple[int, int], message: str
) -> None:
    config = STORE[0]
    pool = random_rows(config, 4, 20, seed=0)
    with pytest.raises(ValueError, match=rf"coachwhip\.store_rows: {message}"):
        run(models[config.name], pool, random_rows(config, *shape, seed=1), indices([0, 1]))
