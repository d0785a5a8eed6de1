"""Routing and experts of a MoE layer in numpy, one token at a time."""

import numpy as np
from numpy.typing import NDArray


def route(
    logits: NDArray,
    bias: NDArray,
    count: int,
    groups: int = 1,
    kept_groups: int = 1,
    normalize: bool = True,
    scale: float = 1.0,
) -> tuple[NDArray, NDArray]:
    """Chooses `count` experts per token by sigmoid(logits) + bias and weights them by the sigmoid.

    Args:
        logits: [tokens, experts].
        bias: [experts].
        count: Experts per token.
        groups: Groups of experts.
        kept_groups: Groups with the largest sums of their two best choices, which alone count.
        normalize: Divide a token's weights by their sum.
        scale: Factor on the weights.

    Returns:
        Experts [tokens, count], best first, ties to the lower index; weights [tokens, count].
    """
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    choices = scores + bias
    for choice in choices:
        by_group = choice.reshape(groups, -1)
        strength = np.sort(by_group, axis=1)[:, -2:].sum(axis=1)
        dropped = np.argsort(-strength, kind="stable")[kept_groups:]
        by_group[dropped] = -np.inf
    chosen = np.argsort(-choices, axis=1, kind="stable")[:, :count]
    weights = np.take_along_axis(scores, chosen, axis=1)
    if normalize:
        weights = weights / (weights.sum(axis=1, keepdims=True) + 1e-20)
    return chosen, weights * scale


def experts(x: NDArray, chosen: NDArray, weights: NDArray, up: NDArray, down: NDArray) -> NDArray:
    """out[t] = sum over j of weights[t, j] * down[e] . relu(up[e] . x[t])^2, e = chosen[t, j].

    Args:
        x: [tokens, width].
        chosen: [tokens, count].
        weights: [tokens, count].
        up: [experts, inner, width].
        down: [experts, width, inner].
    """
    out = np.zeros_like(x)
    for t, row in enumerate(x):
        for e, weight in zip(chosen[t], weights[t], strict=True):
            out[t] += weight * (down[e] @ np.maximum(up[e] @ row, 0) ** 2)
    return out
