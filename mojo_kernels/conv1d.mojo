"""Causal depthwise convolution over a ragged batch, CPU kernel.

    y[t, ch] = act(bias[ch] + sum_k w[k, ch] * x[t - (d_conv - 1) + k, ch])

Rows before the first one of the step come from the window in `read_slot` (zeros for -1). The window
that a row leaves, the last `d_conv - 1` inputs including its own, is stored at `write_slot`.
Windows are `[d_conv - 1, channels]`, oldest row first, so that channels lie across the vector
lanes.

See: tests/reference/conv1d.py; specification of `causal_conv1d` in Gu & Dao 2023, arXiv 2312.00752.
"""

from std.memory import stack_allocation

from .activations import silu

comptime LANES = 16
"""Channels that one vector holds."""
comptime CHANNEL_BLOCK = 256
"""Channels of one work item: d_conv rows of them stay in the L1 cache while rows pass by."""
comptime FEW_ROWS = 8
"""Rows up to which channels, not rows, are the outer loop: decode and verify."""


def conv_block[
    dtype: DType, d_conv: Int, activation: StaticString
](
    y: Pointer[mut=True, Scalar[dtype], ...],
    y_stride: Int,
    x: Pointer[mut=False, Scalar[dtype], ...],
    x_stride: Int,
    weight: Pointer[mut=False, Float32, ...],
    bias: Pointer[mut=False, Float32, ...],
    channels: Int,
    pool: Pointer[mut=True, Scalar[dtype], ...],
    slot_stride: Int,
    read_slot: Int,
    write_slot: Pointer[mut=False, Int32, ...],
    rows: Int,
    count: Int,
):
    """Convolves up to `CHANNEL_BLOCK` channels of one sequence.

    Parameters:
        dtype: Type of rows, windows and outputs; sums are float32.
        d_conv: Taps, 2 to 4.
        activation: "silu" or "none".

    Args:
        y: Output at the block's first channel, `[rows, count]` with `y_stride`.
        y_stride: Elements between rows of `y`.
        x: Input at the block's first channel, `[rows, count]` with `x_stride`.
        x_stride: Elements between rows of `x`.
        weight: Taps at the block's first channel, `[d_conv, count]` with stride `channels`.
        bias: Bias of the block, `[count]`.
        channels: Channels of the whole convolution.
        pool: Slot 0's window of this layer at the block's first channel.
        slot_stride: Elements from one slot to the next.
        read_slot: Slot with the initial window, -1 for zeros.
        write_slot: Slot to store to after each row, -1 for none, `[rows]`.
        rows: Number of rows, may be 0.
        count: Channels of this block, a multiple of 16.
    """
    comptime HISTORY = d_conv - 1
    comptime F = DType.float32
    comptime Vec = SIMD[F, LANES]
    if rows <= FEW_ROWS:
        # The window fits in registers: each channel is read once, and stored where rows ask for it.
        for ch in range(0, count, LANES):
            var seen = Array[SIMD[dtype, LANES], d_conv](fill=0)
            if read_slot >= 0:
                var home = pool.unsafe_offset(read_slot * slot_stride + ch)
                comptime for k in range(HISTORY):
                    seen[k + 1] = home.unsafe_load[width=LANES](k * channels)
            var first = bias.unsafe_load[width=LANES](ch)
            for t in range(rows):
                comptime for k in range(HISTORY):
                    seen[k] = seen[k + 1]
                seen[HISTORY] = x.unsafe_load[width=LANES](t * x_stride + ch)
                var acc = first
                comptime for k in range(d_conv):
                    acc = (
                        seen[k]
                        .cast[F]()
                        .fma(
                            weight.unsafe_load[width=LANES](k * channels + ch),
                            acc,
                        )
                    )
                comptime if activation == "silu":
                    acc = silu(acc)
                y.unsafe_store(t * y_stride + ch, acc.cast[dtype]())
                var slot = Int(write_slot[unsafe_offset=t])
                if slot >= 0:
                    var home = pool.unsafe_offset(slot * slot_stride + ch)
                    comptime for k in range(HISTORY):
                        home.unsafe_store(k * channels, seen[k + 1])
        return
    # The window is copied first: a row may store to the very slot that later rows start from.
    var window = stack_allocation[
        HISTORY * CHANNEL_BLOCK, dtype, alignment=64
    ]()
    comptime for k in range(HISTORY):
        var row = window.unsafe_offset(k * CHANNEL_BLOCK)
        if read_slot >= 0:
            var home = pool.unsafe_offset(
                read_slot * slot_stride + k * channels
            )
            for ch in range(0, count, LANES):
                row.unsafe_store(ch, home.unsafe_load[width=LANES](ch))
        else:
            for ch in range(0, count, LANES):
                row.unsafe_store(ch, SIMD[dtype, LANES](0))

    @always_inline
    def input_at(t: Int, ch: Int) {imm} -> SIMD[dtype, LANES]:
        """Row `t` of the step; negative rows are the window's."""
        if t >= 0:
            return x.unsafe_load[width=LANES](t * x_stride + ch)
        return window.unsafe_load[width=LANES](
            (HISTORY + t) * CHANNEL_BLOCK + ch
        )

    for t in range(rows):
        for ch in range(0, count, LANES):
            var acc = bias.unsafe_load[width=LANES](ch)
            comptime for k in range(d_conv):
                acc = (
                    input_at(t - HISTORY + k, ch)
                    .cast[F]()
                    .fma(
                        weight.unsafe_load[width=LANES](k * channels + ch), acc
                    )
                )
            comptime if activation == "silu":
                acc = silu(acc)
            y.unsafe_store(t * y_stride + ch, acc.cast[dtype]())
        var slot = Int(write_slot[unsafe_offset=t])
        if slot >= 0:
            var home = pool.unsafe_offset(slot * slot_stride)
            comptime for k in range(HISTORY):
                for ch in range(0, count, LANES):
                    home.unsafe_store(
                        k * channels + ch, input_at(t - HISTORY + 1 + k, ch)
                    )
