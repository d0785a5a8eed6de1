"""Routing and experts of a MoE layer: values, ties, and a row's bits against the rows beside it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from max.engine import Model

from coachwhip.checkpoint.to_panels import to_panels
from tests.kernels.arrays import TOLERANCE, Typed, assert_same_bits, indices, run, typed
from tests.kernels.op_graphs import BF16, EXPERTS, ROUTE, ExpertsConfig, RouteConfig
from tests.kernels.properties import PROPERTY, SEEDS
from tests.reference import moe

ROWS = st.sampled_from([0, 1, 2, 3, 5, 8, 31, 64, 65, 130])
CHOICES = [c for c in ROUTE if not c.weights]
ids = {"ids": lambda c: c.name}


def reference_route(config: RouteConfig, logits: Typed, bias: Typed):
    return moe.route(
        logits.values,
        bias.values,
        config.count,
        config.groups,
        config.kept_groups,
        config.normalize,
        config.scale,
    )


def both(models: dict[str, Model], config: RouteConfig, logits: Typed, bias: Typed):
    """Returns the experts and weights that the kernel finds."""
    name = config.name.removesuffix("experts")
    return run(models[name + "experts"], logits, bias), run(models[name + "weights"], logits, bias)


@pytest.mark.parametrize("config", CHOICES, **ids)
def test_route_matches_reference(models: dict[str, Model], config: RouteConfig) -> None:
    @PROPERTY
    @given(rows=ROWS, seed=SEEDS)
    def holds(rows: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        logits = typed(rng.standard_normal((rows, config.experts)) * 3)
        bias = typed(rng.standard_normal(config.experts) * 0.1)
        chosen, weights = both(models, config, logits, bias)
        want, want_weights = reference_route(config, logits, bias)
        # Choices closer than float32 can tell may go either way; their scores then agree.
        same = (chosen.stored == want).all(axis=1)
        assert same.mean() > 0.95 if rows >= 31 else same.sum() >= rows - 1
        assert (
            np.abs(weights.values[same] - want_weights[same]).max(initial=0) < 2e-6 * config.scale
        )

    holds()


@pytest.mark.parametrize("config", CHOICES, **ids)
def test_ties_go_to_the_lower_index(models: dict[str, Model], config: RouteConfig) -> None:
    bias = typed(np.zeros(config.experts))
    for values in ([0.0], [-2.0, 1.0], [3.0, -1.0, 3.0]):
        logits = typed(np.resize(values, (2, config.experts)))
        chosen, _ = both(models, config, logits, bias)
        assert np.array_equal(chosen.stored, reference_route(config, logits, bias)[0])


@pytest.mark.parametrize("config", CHOICES, **ids)
def test_the_bias_moves_the_choice_but_not_the_weight(
    models: dict[str, Model], config: RouteConfig
) -> None:
    rng = np.random.default_rng(1)
    logits = typed(rng.standard_normal((4, config.experts)))
    bias = np.zeros(config.experts)
    bias[config.experts - 1] = 10.0
    chosen, weights = both(models, config, logits, typed(bias))
    assert (chosen.stored[:, 0] == config.experts - 1).all()
    score = 1 / (1 + np.exp(-logits.values[:, -1]))
    if not config.normalize:
        assert np.allclose(weights.values[:, 0], score * config.scale, rtol=1e-6)
    else:
        assert np.allclose(weights.values.sum(axis=1), config.scale, rtol=1e-6)


@pytest.mark.parametrize("config", CHOICES, **ids)
def test_logits_that_are_no_numbers_choose_distinct_experts_that_exist(
    models: dict[str, Model], config: RouteConfig
) -> None:
    """Weights carry the NaN on, for the engine to find; an index out of range would be worse."""
    logits = np.full((3, config.experts), np.nan)
    logits[1, ::2] = 1.0
    logits[2] = [-np.inf, np.inf] * (config.experts // 2)
    bias = np.zeros(config.experts)
    bias[: config.experts // 2] = -np.inf
    chosen, weights = both(models, config, typed(logits), typed(bias))
    assert ((chosen.stored >= 0) & (chosen.stored < config.experts)).all()
    assert all(len(set(row)) == config.count for row in chosen.stored.tolist())
    assert np.isnan(weights.values[0]).all()


def operands(config: ExpertsConfig, rows: int, skew: bool, seed: int) -> list[Typed]:
    """Rows, choices and weights; with `skew` most tokens choose the same experts."""
    rng = np.random.default_rng(seed)
    likely = np.ones(config.experts)
    if skew:
        likely[: config.count] = 1000
    draws = [
        rng.choice(config.experts, config.count, replace=False, p=likely / likely.sum())
        for _ in range(rows)
    ]
    return [
        typed(rng.standard_normal((rows, config.width)), config.rows),
        indices(np.array(draws, np.int32).reshape(rows, config.count)),
        typed(rng.uniform(0.1, 1, (rows, config.count))),
        typed(
            rng.standard_normal((config.experts, config.inner, config.width)) * config.width**-0.5,
            config.rows,
        ),
        typed(
            rng.standard_normal((config.experts, config.width, config.inner)) * config.inner**-0.5,
            config.rows,
        ),
    ]


def run_experts(model: Model, *arrays: Typed) -> Typed:
    """Runs the op on rows, choices, weights, and the experts' matrices."""
    *rows, up, down = arrays
    return run(model, *rows, *(Typed(to_panels(w.stored), w.dtype) for w in (up, down)))


@pytest.mark.parametrize("config", EXPERTS, **ids)
def test_experts_match_reference(models: dict[str, Model], config: ExpertsConfig) -> None:
    # In bfloat16 the hidden rows are rounded too, so errors of 2^-8 add up over them.
    limit = 0.02 if config.rows == BF16 else TOLERANCE[config.rows].absolute

    @PROPERTY
    @given(rows=ROWS, skew=st.booleans(), seed=SEEDS)
    def holds(rows: int, skew: bool, seed: int) -> None:
        arrays = operands(config, rows, skew, seed)
        got = run_experts(models[config.name], *arrays)
        x, chosen, weights, up, down = arrays
        want = moe.experts(x.values, chosen.stored, weights.values, up.values, down.values)
        top = max(1.0, np.abs(want).max(initial=0))
        assert np.abs(got.values - want).max(initial=0) <= limit * top

    holds()


@pytest.mark.parametrize("config", EXPERTS, **ids)
def test_bits_do_not_depend_on_the_rows_beside(
    models: dict[str, Model], config: ExpertsConfig
) -> None:
    model = models[config.name]

    @PROPERTY
    @given(rows=ROWS, cut=st.integers(0, 130), skew=st.booleans(), seed=SEEDS)
    def holds(rows: int, cut: int, skew: bool, seed: int) -> None:
        x, chosen, weights, up, down = operands(config, rows, skew, seed)
        together = run_experts(model, x, chosen, weights, up, down)
        cut = min(cut, rows)
        for first, end in ((0, cut), (cut, rows), (cut, min(cut + 1, rows))):
            some = (a.rows(first, end) for a in (x, chosen, weights))
            apart = run_experts(model, *some, up, down)
            assert_same_bits(apart, together.rows(first, end), f"rows {first} to {end}")

    holds()


def test_experts_nobody_chose_are_not_read(models: dict[str, Model]) -> None:
    config = EXPERTS[0]
    x, chosen, weights, up, down = operands(config, 20, False, 3)
    chosen.stored[:] = [7, 2, 4]
    clean = run_experts(models[config.name], x, chosen, weights, up, down)
    for e in range(config.experts):
        if e not in (7, 2, 4):
            up.stored[e] = down.stored[e] = np.nan
    again = run_experts(models[config.name], x, chosen, weights, up, down)
    assert_same_bits(again, clean, "y")


def test_an_expert_that_does_not_exist_is_refused(models: dict[str, Model]) -> None:
    config = EXPERTS[0]
    arrays = operands(config, 3, False, 4)
    arrays[1].stored[1, 2] = config.experts
    with pytest.raises(ValueError, match=r"coachwhip\.moe_experts: chosen\[5\] is 10"):
        run_experts(models[config.name], *arrays)
    arrays[1].stored[1, 2] = 0
    run_experts(models[config.name], *arrays)


def test_panels_of_other_experts_are_refused(models: dict[str, Model]) -> None:
    config = EXPERTS[0]
    *rows, up, _ = operands(config, 3, False, 4)
    panels = Typed(to_panels(up.stored), up.dtype)
    with pytest.raises(ValueError, match="does not match expected type"):
        run(models[config.name], *rows, panels, panels)
