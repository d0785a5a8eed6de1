"""The attention mixer: q, k, v projections, paged causal attention, output projection."""

from __future__ import annotations

from max.graph import TensorValue

from . import ops as kernels
from .ops import linear
from .registry import Registry
from .spec import AttentionSpec
from .step import StepInputs


def attention(
    x: TensorValue, weights: Registry, spec: AttentionSpec, step: StepInputs, layer: int
) -> TensorValue:
    """Applies one attention mixer and appends its keys and values to the pages.

    Args:
        x: [tokens, hidden], model dtype.
        weights: The layer's `{q,k,v,o}_proj.weight`.
        spec: Shapes and softmax scale.
        step: The ragged batch and the page pool.
        layer: Index among the attention layers.

    Returns:
        [tokens, hidden], dtype of x.

    Raises:
        ValueError: The spec asks for rotary positions, which no kernel here applies.
    """
    if spec.rope_theta is not None:
        raise ValueError("attention: rope_theta is set, but this graph applies no rotary positions")
    q, k, v = (linear(x, weights.matrix(f"{name}_proj.weight")) for name in "qkv")
    out = kernels.attention(
        step.pages,
        q,
        k,
        v,
        step.seq_start,
        step.kv_length,
        step.block_table,
        layer=layer,
        scale=spec.scale,
    )
    return linear(out, weights.matrix("o_proj.weight"))
