"""Products with a weight: values, and a row's bits against the rows beside it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max.engine import Model

from tests.kernels.arrays import Typed, assert_close, assert_same_bits, run, typed
from tests.kernels.op_graphs import LINEAR, LinearConfig
from tests.kernels.properties import PROPERTY, SEEDS

by_name = pytest.mark.parametrize("config", LINEAR, ids=lambda c: c.name)

# Both sides of a vector (16 or 32) and of a slice of k (512 or 1,024).
WIDTHS = st.sampled_from([1, 15, 16, 17, 33, 100, 511, 512, 513, 1024, 1030, 2100])
# Both sides of a micro-kernel (6) and of a group of them (24), and enough for threads.
COLUMNS = st.sampled_from([0, 1, 5, 6, 7, 23, 24, 25, 48, 49, 600])
# Both sides of a micro-kernel (4) and of a block (64).
ROWS = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 100, 130])


def operands(config: LinearConfig, rows: int, k: int, n: int, seed: int) -> tuple[Typed, Typed]:
    """Returns x [rows, k] and w [n, k], so that outputs are of unit scale."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, k))
    return typed(x, config.rows), typed(rng.standard_normal((n, k)) * k**-0.5, config.rows)


def assert_matches_reference(
    model: Model, config: LinearConfig, rows: int, k: int, n: int, seed: int
) -> None:
    x, w = operands(config, rows, k, n, seed)
    assert_close(run(model, x, w), x.values @ w.values.T, "y")


@by_name
def test_matches_reference(models: dict[str, Model], config: LinearConfig) -> None:
    @PROPERTY
    @given(rows=ROWS, k=WIDTHS, n=COLUMNS, seed=SEEDS)
    def holds(rows: int, k: int, n: int, seed: int) -> None:
        assert_matches_reference(models[config.name], config, rows, k, n, seed)

    holds()


@by_name
def test_bits_do_not_depend_on_the_rows_beside(
    models: dict[str, Model], config: LinearConfig
) -> None:
    """Rows alone, in a shorter run and in the whole batch: same bits."""
    model = models[config.name]

    @PROPERTY
    @given(rows=ROWS, cut=st.integers(0, 130), k=WIDTHS, n=COLUMNS, seed=SEEDS)
    def holds(rows: int, cut: int, k: int, n: int, seed: int) -> None:
        x, w = operands(config, rows, k, n, seed)
        together = run(model, x, w)
        cut = min(cut, rows)
        for first, end in ((0, cut), (cut, rows), (cut, min(cut + 1, rows))):
            apart = run(model, x.rows(first, end), w)
            assert_same_bits(apart, together.rows(first, end), f"rows {first} to {end}")

    holds()


def test_wrong_width_is_refused(models: dict[str, Model]) -> None:
    config = LINEAR[0]
    model = models[config.name]
    x, w = operands(config, 3, 32, 8, seed=0)
    with pytest.raises(ValueError, match="symbolic dimension 'k' for input 1 does not match"):
        run(model, x, w.columns(31))
    with pytest.raises(
        ValueError, match=r"coachwhip\.linear: x\.shape\[1\] is 0, expected at leas"
    ):
        run(model, x.columns(0), w.columns(0))
    assert_matches_reference(model, config, 3, 32, 8, seed=0)
