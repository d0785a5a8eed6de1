"""Gated RMSNorm of the Mamba2 mixer, GPU kernel: one block per row and group.

Same maths as `gated_rms_norm.mojo`.
"""

from max.gpu import WARP_SIZE, barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.memory import AddressSpace
from max.gpu.primitives import warp
from std.math import exp, rsqrt
from std.memory import stack_allocation

comptime THREADS = 128
"""Threads of a block."""


@always_inline
def gated(y: Float32, z: Float32) -> Float32:
    """Returns `y * silu(z)`.

    Args:
        y: Output of the scan.
        z: Gate.

    Returns:
        The gated value.
    """
    return y * z / (1 + exp(-z))


def gated_rms_norm_gpu[
    dtype: DType
](
    result: Pointer[Scalar[dtype], MutAnyOrigin],
    y: Pointer[Scalar[dtype], ImmutAnyOrigin],
    z: Pointer[Scalar[dtype], ImmutAnyOrigin],
    weight: Pointer[Float32, ImmutAnyOrigin],
    width_: Int32,
    z_stride_: Int32,
    groups_: Int32,
    eps: Float32,
):
    """Normalises one group of one row; grid (tokens, groups).

    Parameters:
        dtype: Type of the rows.

    Args:
        result: Where the output goes, `[tokens, width]`.
        y: Output of the scan, `[tokens, width]`.
        z: Gate at its first column, `[tokens, width]` with `z_stride_`.
        weight: Norm weight, `[width]`.
        width_: Values per row.
        z_stride_: Elements between rows of z.
        groups_: Groups per row.
        eps: Added to the mean square.
    """
    comptime F = DType.float32
    comptime WARPS = THREADS // WARP_SIZE
    var width = Int(width_)
    var size = width // Int(groups_)
    var row = Int(block_idx.x)
    var base = Int(block_idx.y) * size
    var yr = y.unsafe_offset(row * width + base)
    var zr = z.unsafe_offset(row * Int(z_stride_) + base)
    var sum = Float32(0)
    for i in range(Int(thread_idx.x), size, THREADS):
        var v = gated(
            yr[unsafe_offset=i].cast[F](), zr[unsafe_offset=i].cast[F]()
        )
        sum = v.fma(v, sum)
    var parts = stack_allocation[WARPS, F, address_space=AddressSpace.SHARED]()
    sum = warp.sum(sum)
    if lane_id() == 0:
        parts[unsafe_offset=Int(warp_id())] = sum
    barrier()
    var total = Float32(0)
    comptime for w in range(WARPS):
        total += parts[unsafe_offset=w]
    var scale = rsqrt(total / Float32(size) + eps)
    for i in range(Int(thread_idx.x), size, THREADS):
        var v = gated(
            yr[unsafe_offset=i].cast[F](), zr[unsafe_offset=i].cast[F]()
        )
        result[unsafe_offset=row * width + base + i] = (
            v * scale * weight[unsafe_offset=base + i]
        ).cast[dtype]()
