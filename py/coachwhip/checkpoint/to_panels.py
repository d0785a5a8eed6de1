"""Lays matrices out in panels, once, when they are loaded."""

from __future__ import annotations

from math import ceil, prod

import numpy as np

from coachwhip_graphs.panels import PANEL, WORD, panels_shape

CACHE_LINE = 64
"""Bytes."""


def to_panels(matrix: np.ndarray) -> np.ndarray:
    """Lays a matrix out in panels.

    Args:
        matrix: [..., n, k], contiguous; float32, or bfloat16 held as uint16.

    Returns:
        `panels_shape`, dtype of `matrix`; a copy that begins a cache line, so that no vector of 64
        bytes lies in two.
    """
    *stack, n, k = matrix.shape
    each = WORD // matrix.itemsize
    words, whole = ceil(k / each), k // each
    panels = _aligned_zeros((prod(stack), ceil(n / PANEL), words, PANEL * each), matrix.dtype)
    for one, into in zip(matrix.reshape(prod(stack), n, k), panels, strict=True):
        for begin, panel in zip(range(0, n, PANEL), into, strict=True):
            rows = one[begin : begin + PANEL]
            # Words are moved as whole numbers, so that no value is looked at.
            panel.view(np.uint32)[:whole, : len(rows)] = rows[:, : whole * each].view(np.uint32).T
            if whole < words:
                panel[whole, : each * len(rows) : each] = rows[:, -1]
    return panels.reshape(panels_shape(matrix.shape, matrix.itemsize))


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = prod(shape) * dtype.itemsize
    room = np.zeros(size + CACHE_LINE, np.uint8)
    begin = -room.ctypes.data % CACHE_LINE
    return room[begin : begin + size].view(dtype).reshape(shape)
