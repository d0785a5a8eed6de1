"""RMSNorm of the residual stream."""

from __future__ import annotations

from max.dtype import DType
from max.graph import TensorValue, ops


def rms_norm(x: TensorValue, weight: TensorValue, eps: float, dtype: DType) -> TensorValue:
    """Normalises rows: x * rsqrt(mean(x^2) + eps) * weight, in f32, rounded once at the end.

    Args:
        x: [tokens, hidden], any float type.
        weight: [hidden] f32.
        eps: Added to the mean square.
        dtype: Type of the result.

    Returns:
        [tokens, hidden] of `dtype`.
    """
    return ops.cast(ops.rms_norm(ops.cast(x, DType.float32), weight, eps), dtype)
