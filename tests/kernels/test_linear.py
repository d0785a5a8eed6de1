"""Products with a weight: values, and a row's bits against the rows beside it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max.engine import Model

from coachwhip.checkpoint.to_panels import to_panels
from tests.kernels.arrays import Typed, assert_close, assert_same_bits, indices, run, typed
from tests.kernels.op_graphs import LINEAR, LinearConfig
from tests.kernels.properties import PROPERTY, SEEDS

by_name = pytest.mark.parametrize("config", LINEAR, ids=lambda c: c.name)

# Both sides of a word (1 or 2) and of a slice of k (512 or 1,024).
WIDTHS = st.sampled_from([1, 2, 3, 17, 100, 511, 512, 513, 1023, 1024, 1025, 2100])
# Both sides of a vector (16), of half a panel (32) and of a panel (64), and enough for threads.
COLUMNS = st.sampled_from([0, 1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 97, 128, 600])
# Both sides of a micro-kernel (6) and of a block (72).
ROWS = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 71, 72, 73, 100, 150])


def operands(config: LinearConfig, rows: int, k: int, n: int, seed: int) -> tuple[Typed, Typed]:
    """Returns x [rows, k] and w [n, k], so that outputs are of unit scale."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, k))
    return typed(x, config.rows), typed(rng.standard_normal((n, k)) * k**-0.5, config.rows)


def multiply(model: Model, x: Typed, w: Typed) -> Typed:
    """Returns what the op makes of rows [rows, k] and a weight [n, k]."""
    return run(model, x, Typed(to_panels(w.stored), w.dtype), indices([0] * len(w.stored)))


def assert_matches_reference(
    model: Model, config: LinearConfig, rows: int, k: int, n: int, seed: int
) -> None:
    x, w = operands(config, rows, k, n, seed)
    assert_close(multiply(model, x, w), x.values @ w.values.T, "y")


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
        together = multiply(model, x, w)
        cut = min(cut, rows)
        for first, end in ((0, cut), (cut, rows), (cut, min(cut + 1, rows))):
            apart = multiply(model, x.rows(first, end), w)
            assert_same_bits(apart, together.rows(first, end), f"rows {first} to {end}")

    holds()


@by_name
def test_what_lies_beside_a_matrix_is_not_used(
    models: dict[str, Model], config: LinearConfig
) -> None:
    """Panels have room for more rows and, in bfloat16, for one more k: neither is in an output.

    Infinity begins the row after one that ends with half a word: times the panel's zero it is NaN.
    """
    x, w = operands(config, 5, 33, 40, seed=1)
    x.stored[2, 0] = typed(np.array([np.inf]), config.rows).stored[0]
    got = multiply(models[config.name], x, w)
    rest = [0, 1, 3, 4]
    assert_close(Typed(got.stored[rest], got.dtype), x.values[rest] @ w.values.T, "y")
    assert np.isinf(got.values[2]).all()


def test_panels_of_another_matrix_are_refused(models: dict[str, Model]) -> None:
    config = LINEAR[0]
    model = models[config.name]
    x, w = operands(config, 3, 32, 80, seed=0)
    refused = r"coachwhip\.linear: w has the shape \[{}\], expected panels \[2, 32, 64\]"
    for of, shape in (
        (w.columns(31), "2, 31, 64"),
        (w.rows(0, 64), "1, 32, 64"),
        (typed(np.zeros((129, 32))), "3, 32, 64"),
    ):
        with pytest.raises(ValueError, match=refused.format(shape)):
            run(model, x, Typed(to_panels(of.stored), of.dtype), indices([0] * 80))
    with pytest.raises(ValueError, match=refused.format("80, 32, 1")):
        run(model, x, Typed(w.stored[:, :, None], w.dtype), indices([0] * 80))
    with pytest.raises(
        ValueError, match=r"coachwhip\.linear: x\.shape\[1\] is 0, expected at leas"
    ):
        multiply(model, x.columns(0), w.columns(0))
    assert_matches_reference(model, config, 3, 32, 80, seed=0)
