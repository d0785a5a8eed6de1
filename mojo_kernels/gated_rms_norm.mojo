"""Gated RMSNorm of the Mamba2 mixer, CPU kernel: the gate first, then the norm of each group.

    v = y * silu(z);  out = v * rsqrt(mean over the group of v^2 + eps) * weight

Statistics and products are float32; only the result is rounded to the row's type.

See: model code of NemotronH (norm_before_gate = False); tests/reference/gated_rms_norm.py.
"""

from std.math import rsqrt

from .activations import silu

comptime LANES = 16
"""Values that one vector holds."""


def norm_group[
    dtype: DType
](
    result: Pointer[mut=True, Scalar[dtype], ...],
    y: Pointer[mut=False, Scalar[dtype], ...],
    z: Pointer[mut=False, Scalar[dtype], ...],
    weight: Pointer[mut=False, Float32, ...],
    eps: Float32,
    size: Int,
):
    """Normalises one group of one row.

    Parameters:
        dtype: Type of the rows.

    Args:
        result: Where the output goes, `[size]`.
        y: Output of the scan, `[size]`.
        z: Gate, `[size]`.
        weight: Norm weight, `[size]`.
        eps: Added to the mean square.
        size: Values of the group, a multiple of 16.
    """
    comptime F = DType.float32
    var sum = SIMD[F, LANES](0)
    for i in range(0, size, LANES):
        var v = y.unsafe_load[width=LANES](i).cast[F]() * silu(
            z.unsafe_load[width=LANES](i).cast[F]()
        )
        sum = v.fma(v, sum)
    var scale = rsqrt(sum.reduce_add() / Float32(size) + eps)
    # The gate is computed again instead of kept: a group has thousands of values, exp is cheap.
    for i in range(0, size, LANES):
        var v = y.unsafe_load[width=LANES](i).cast[F]() * silu(
            z.unsafe_load[width=LANES](i).cast[F]()
        )
        result.unsafe_store(
            i,
            (v * scale * weight.unsafe_load[width=LANES](i)).cast[dtype](),
        )
