"""The MLP block of NemotronH: down(relu(up(x))^2), without a gate."""

from __future__ import annotations

from max.graph import TensorValue, ops

from .ops import linear
from .registry import Registry


def mlp(x: TensorValue, weights: Registry) -> TensorValue:
    """Applies the squared-ReLU MLP to each row.

    Args:
        x: [tokens, hidden], model dtype.
        weights: The layer's `up_proj.weight` [ffn, hidden] and `down_proj.weight` [hidden, ffn].

    Returns:
        [tokens, hidden], dtype of x.
    """
    up = ops.relu(linear(x, weights.matrix("up_proj.weight")))
    return linear(up * up, weights.matrix("down_proj.weight"))
