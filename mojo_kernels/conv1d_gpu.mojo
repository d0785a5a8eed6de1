"""Causal depthwise convolution over a ragged batch, GPU kernel: one thread per channel.

Same contract as `conv1d.mojo`. A thread keeps its channel's window and taps in registers and walks
the rows of one sequence; neighbouring threads hold neighbouring channels, so loads coalesce.
"""

from max.gpu import block_dim, block_idx, thread_idx
from std.math import exp


def conv1d_gpu[
    dtype: DType, d_conv: Int, activation: StaticString
](
    y: Pointer[Scalar[dtype], MutAnyOrigin],
    x: Pointer[Scalar[dtype], ImmutAnyOrigin],
    weight: Pointer[Float32, ImmutAnyOrigin],
    bias: Pointer[Float32, ImmutAnyOrigin],
    pool: Pointer[Scalar[dtype], MutAnyOrigin],
    seq_start: Pointer[Int32, ImmutAnyOrigin],
    read_slot: Pointer[Int32, ImmutAnyOrigin],
    write_slot: Pointer[Int32, ImmutAnyOrigin],
    channels_: Int32,
    x_stride_: Int32,
    slot_stride: Int64,
):
    """Convolves one channel of one sequence; grid (batch, channel blocks).

    Parameters:
        dtype: Type of rows, windows and outputs.
        d_conv: Taps.
        activation: "silu" or "none".

    Args:
        y: Output, `[tokens, channels]`.
        x: Input at its first channel, `[tokens, channels]` with `x_stride_`.
        weight: Taps, `[d_conv, channels]`.
        bias: Bias, `[channels]`.
        pool: Slot 0's window of this layer, `[d_conv - 1, channels]`.
        seq_start: First row of each sequence, `[batch + 1]`.
        read_slot: Initial window of each sequence, -1 for zeros.
        write_slot: Where each row's window goes, -1 for nowhere.
        channels_: Number of channels.
        x_stride_: Elements between rows of x.
        slot_stride: Elements between slots.
    """
    comptime F = DType.float32
    comptime HISTORY = d_conv - 1
    var channels = Int(channels_)
    var stride = Int(x_stride_)
    var ch = Int(block_idx.y) * Int(block_dim.x) + Int(thread_idx.x)
    var s = Int(block_idx.x)
    if ch >= channels:
        return
    var taps = Array[Float32, d_conv](fill=0)
    comptime for k in range(d_conv):
        taps[k] = weight[unsafe_offset=k * channels + ch]
    var hist = Array[Scalar[dtype], d_conv](fill=0)  # oldest first, then x[t]
    var first = Int(read_slot[unsafe_offset=s])
    if first >= 0:
        comptime for k in range(HISTORY):
            hist[k + 1] = pool[
                unsafe_offset=first * Int(slot_stride) + k * channels + ch
            ]
    for t in range(
        Int(seq_start[unsafe_offset=s]), Int(seq_start[unsafe_offset=s + 1])
    ):
        comptime for k in range(HISTORY):
            hist[k] = hist[k + 1]
        hist[HISTORY] = x[unsafe_offset=t * stride + ch]
        var acc = bias[unsafe_offset=ch]
        comptime for k in range(d_conv):
            acc = hist[k].cast[F]().fma(taps[k], acc)
        comptime if activation == "silu":
            acc = acc / (1 + exp(-acc))
        y[unsafe_offset=t * channels + ch] = acc.cast[dtype]()
        var slot = Int(write_slot[unsafe_offset=t])
        if slot >= 0:
            comptime for k in range(HISTORY):
                pool[
                    unsafe_offset=slot * Int(slot_stride) + k * channels + ch
                ] = hist[k + 1]
