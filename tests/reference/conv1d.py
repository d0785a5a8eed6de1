"""Reference of the causal depthwise convolution with windows in slots, in numpy.

Computes in the type of its arguments (float64 in the tests), one sequence at a time.

See: specification of `causal_conv1d` in Gu & Dao 2023, arXiv 2312.00752.
"""

import numpy as np
from numpy.typing import NDArray


def silu(x: NDArray) -> NDArray:
    """Returns x * sigmoid(x), without overflow."""
    return x * np.exp(-np.logaddexp(0, -x))


def conv1d(
    pool: NDArray,
    x: NDArray,
    weight: NDArray,
    bias: NDArray,
    seq_start: NDArray,
    read_slot: NDArray,
    write_slot: NDArray,
    *,
    layer: int,
    x_offset: int = 0,
    activation: str = "silu",
) -> tuple[NDArray, NDArray]:
    """Convolves each channel over the rows of each sequence.

    y[t, ch] = act(bias[ch] + sum_k weight[k, ch] * x[t - (d_conv - 1) + k, ch]), where rows before
    the sequence's first are those of its window: the d_conv - 1 inputs that came last.

    Args:
        pool: [slots, layers, d_conv - 1, channels]; windows, oldest row first. Not changed.
        x: [tokens, >= x_offset + channels].
        weight: [d_conv, channels].
        bias: [channels].
        seq_start: [batch + 1]; first row of each sequence.
        read_slot: [batch]; window before the first row, -1 = zeros.
        write_slot: [tokens]; where the window after each row goes, -1 = nowhere.
        layer: Layer of the pool.
        x_offset: Column of x where the channels begin.
        activation: "silu" or "none".

    Returns:
        y [tokens, channels], and the pool after the step.
    """
    d_conv, channels = weight.shape
    after = pool.copy()
    y = np.empty((len(x), channels), x.dtype)
    for s, read in enumerate(read_slot):
        first, end = seq_start[s], seq_start[s + 1]
        window = pool[read, layer] if read >= 0 else np.zeros_like(weight[1:])
        rows = np.concatenate([window, x[first:end, x_offset : x_offset + channels]])
        for t in range(end - first):
            total = bias + (weight * rows[t : t + d_conv]).sum(axis=0)
            y[first + t] = silu(total) if activation == "silu" else total
            if write_slot[first + t] >= 0:
                after[write_slot[first + t], layer] = rows[t + 1 : t + d_conv]
    return y, after
