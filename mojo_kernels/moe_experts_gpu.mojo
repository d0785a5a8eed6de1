"""The routed experts of a MoE layer, GPU kernels.

Same maths as `moe_experts.mojo`. A warp computes one output: first `relu(up . x)^2` for each pair
(token, choice), then for each token the weighted sum over its choices, in their order. Weights are
read once per pair, which suits decode, where few pairs share an expert.
"""

from max.gpu import WARP_SIZE, block_idx, lane_id, warp_id
from max.gpu.primitives import warp

comptime WARPS = 8
"""Warps, and so outputs, of a block."""


@always_inline
def warp_dot[
    dtype: DType
](
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
) -> Float32:
    """Returns the dot product of two rows, computed by one warp.

    Parameters:
        dtype: Type of the rows.

    Args:
        x: First row, `[k]`.
        w: Second row, `[k]`.
        k: Their length.

    Returns:
        The float32 sum, in every lane.
    """
    comptime F = DType.float32
    var sum = Float32(0)
    for i in range(Int(lane_id()), k, WARP_SIZE):
        sum = (
            x[unsafe_offset=i].cast[F]().fma(w[unsafe_offset=i].cast[F](), sum)
        )
    return warp.sum(sum)


def experts_up_gpu[
    dtype: DType
](
    h: Pointer[Scalar[dtype], MutAnyOrigin],
    x: Pointer[Scalar[dtype], ImmutAnyOrigin],
    chosen: Pointer[Int32, ImmutAnyOrigin],
    up: Pointer[Scalar[dtype], ImmutAnyOrigin],
    count: Int32,
    width: Int32,
    hidden: Int32,
):
    """Computes `relu(up . x)^2` of one pair for 8 outputs; grid (pairs, output blocks).

    Parameters:
        dtype: Type of rows and weights.

    Args:
        h: Result, `[pairs, hidden]`.
        x: Rows, `[tokens, width]`.
        chosen: Expert of each pair, `[pairs]`.
        up: Weights, `[experts, hidden, width]`.
        count: Pairs per token.
        width: Values per row of x.
        hidden: Values per row of h.
    """
    var pair = Int(block_idx.x)
    var column = Int(block_idx.y) * WARPS + Int(warp_id())
    var k = Int(width)
    var n = Int(hidden)
    if column >= n:
        return
    var e = Int(chosen[unsafe_offset=pair])
    var dot = warp_dot[dtype](
        x.unsafe_offset(pair // Int(count) * k),
        up.unsafe_offset((e * n + column) * k),
        k,
    )
    if lane_id() == 0:
        var v = max(dot.cast[dtype](), 0)
        h[unsafe_offset=pair * n + column] = v * v


def experts_down_gpu[
    dtype: DType
](
    result: Pointer[Scalar[dtype], MutAnyOrigin],
    h: Pointer[Scalar[dtype], ImmutAnyOrigin],
    chosen: Pointer[Int32, ImmutAnyOrigin],
    weights: Pointer[Float32, ImmutAnyOrigin],
    down: Pointer[Scalar[dtype], ImmutAnyOrigin],
    count: Int32,
    width: Int32,
    hidden: Int32,
):
    """Sums a token's experts for 8 outputs; grid (tokens, output blocks).

    Parameters:
        dtype: Type of rows and weights.

    Args:
        result: Where the output goes, `[tokens, width]`.
        h: Hidden rows, `[pairs, hidden]`.
        chosen: Expert of each pair, `[pairs]`.
        weights: Weight of each pair, `[pairs]`.
        down: Weights, `[experts, width, hidden]`.
        count: Pairs per token.
        width: Values per row of the output.
        hidden: Values per row of h.
    """
    var t = Int(block_idx.x)
    var column = Int(block_idx.y) * WARPS + Int(warp_id())
    var n = Int(width)
    var k = Int(hidden)
    if column >= n:
        return
    var sum = Float32(0)
    for j in range(Int(count)):
        var pair = t * Int(count) + j
        var e = Int(chosen[unsafe_offset=pair])
        sum = weights[unsafe_offset=pair].fma(
            warp_dot[dtype](
                h.unsafe_offset(pair * k),
                down.unsafe_offset((e * n + column) * k),
                k,
            ),
            sum,
        )
    if lane_id() == 0:
        result[unsafe_offset=t * n + column] = sum.cast[dtype]()
