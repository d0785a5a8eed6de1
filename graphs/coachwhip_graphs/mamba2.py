"""The Mamba2 mixer: in_proj, convolution, recurrence, gated norm, out_proj."""

from __future__ import annotations

from max.graph import TensorValue

from . import ops as kernels
from .ops import linear
from .registry import Registry
from .spec import Mamba2Spec
from .step import StepInputs


def mamba2(
    x: TensorValue,
    weights: Registry,
    spec: Mamba2Spec,
    eps: float,
    step: StepInputs,
    layer: int,
) -> TensorValue:
    """Applies one Mamba2 mixer and advances its conv and SSM state.

    p = x @ in_proj^T = z | x | B | C | dt; (x|B|C) = silu(conv(x|B|C)); y = scan(x, B, C, dt);
    out = norm(y * silu(z)) @ out_proj^T. The ops read their columns of p in place, so the
    projection is never split into copies.

    Args:
        x: [tokens, hidden], model dtype.
        weights: The layer's mixer weights.
        spec: Shapes of the mixer.
        eps: Of the gated norm.
        step: The ragged batch and the pools.
        layer: Index among the Mamba2 layers.

    Returns:
        [tokens, hidden], dtype of x.

    See: Dao & Gu 2024, arXiv 2405.21060; tests/reference/nemotron_h.py.
    """
    projected = linear(x, weights.matrix("in_proj.weight"))
    xbc = kernels.conv1d(
        step.conv,
        projected,
        weights["conv1d.weight"],
        weights["conv1d.bias"],
        step.seq_start,
        step.read_slot,
        step.write_slot,
        layer=layer,
        x_offset=spec.d_inner,
    )
    y = kernels.ssm_scan(
        step.ssm,
        xbc,
        projected,
        weights["A"],
        weights["D"],
        weights["dt_bias"],
        step.seq_start,
        step.read_slot,
        step.write_slot,
        layer=layer,
        headdim=spec.headdim,
        dstate=spec.dstate,
        dt_offset=spec.d_inner + spec.conv_dim,
        dt_limit=spec.dt_limit,
    )
    y = kernels.gated_rms_norm(y, projected, weights["norm.weight"], groups=spec.ngroups, eps=eps)
    return linear(y, weights.matrix("out_proj.weight"))
