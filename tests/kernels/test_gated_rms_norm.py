"""The gated norm against its reference, and rows against the rows beside them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max.engine import Model

from tests.kernels.arrays import Typed, assert_close, assert_same_bits, run, typed
from tests.kernels.op_graphs import NORM, NormConfig
from tests.kernels.properties import PROPERTY, SEEDS
from tests.reference.gated_rms_norm import gated_rms_norm

by_name = pytest.mark.parametrize("config", NORM, ids=lambda c: c.name)


def operands(config: NormConfig, tokens: int, seed: int) -> tuple[Typed, Typed, Typed]:
    """Returns y, z and weight; NaN in the columns of z that belong to something else."""
    rng = np.random.default_rng(seed)
    # Rows from tiny, where eps counts, to large.
    size = 10.0 ** rng.uniform(-4, 2, (tokens, 1))
    y = rng.standard_normal((tokens, config.width)) * size
    z = np.full((tokens, config.z_offset + config.width + 5), np.nan)
    gate = rng.standard_normal((tokens, config.width)) * 3
    gate[rng.random(gate.shape) < 0.01] = -200  # silu is 0 there, not NaN
    z[:, config.z_offset : config.z_offset + config.width] = gate
    weight = 1 + rng.standard_normal(config.width) / 2
    return typed(y, config.rows), typed(z, config.rows), typed(weight)


def assert_matches_reference(model: Model, config: NormConfig, tokens: int, seed: int) -> None:
    y, z, weight = operands(config, tokens, seed)
    want = gated_rms_norm(
        y.values,
        z.values,
        weight.values,
        groups=config.groups,
        eps=config.eps,
        z_offset=config.z_offset,
    )
    assert_close(run(model, y, z, weight), want, "output")


@by_name
def test_matches_reference(models: dict[str, Model], config: NormConfig) -> None:
    @PROPERTY
    @given(tokens=st.one_of(st.integers(0, 5), st.integers(6, 300)), seed=SEEDS)
    def holds(tokens: int, seed: int) -> None:
        assert_matches_reference(models[config.name], config, tokens, seed)

    holds()


@by_name
def test_bits_do_not_depend_on_the_rows_beside(
    models: dict[str, Model], config: NormConfig
) -> None:
    model = models[config.name]

    @PROPERTY
    @given(cut=st.integers(0, 150), tokens=st.integers(1, 150), seed=SEEDS, other_seed=SEEDS)
    def holds(cut: int, tokens: int, seed: int, other_seed: int) -> None:
        first, end = min(cut, tokens - 1), tokens
        y, z, weight = operands(config, tokens, seed)
        together = run(model, y, z, weight)
        apart = run(model, y.rows(first, end), z.rows(first, end), weight)
        assert_same_bits(apart, together.rows(first, end), "rows apart")
        other_y, other_z, _ = operands(config, tokens, other_seed)
        other_y.stored[first:], other_z.stored[first:] = y.stored[first:], z.stored[first:]
        beside = run(model, other_y, other_z, weight)
        assert_same_bits(beside.rows(first, end), together.rows(first, end), "rows beside others")

    holds()


def test_wrong_shapes_are_refused(models: dict[str, Model]) -> None:
    config = NORM[1]
    model = models[config.name]
    y, z, weight = operands(config, 3, seed=0)
    with pytest.raises(ValueError, match=r"coachwhip\.gated_rms_norm: z\.shape\[0\] is 2, expec"):
        run(model, y, z.rows(0, 2), weight)
    narrow = z.columns(240)
    with pytest.raises(ValueError, match="z has 240 columns, but columns 7 to 247"):
        run(model, y, narrow, weight)
    assert_matches_reference(model, config, 3, seed=0)
