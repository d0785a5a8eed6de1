"""Matrices in panels, value by value."""

import numpy as np
from numpy.typing import NDArray


def panels(matrix: NDArray) -> NDArray:
    """Lays out [..., n, k] as [panels, words of k, 64 * values per word]; a word has four bytes."""
    *stack, n, k = matrix.shape
    each = 4 // matrix.itemsize
    count, words = -(-n // 64), -(-k // each)
    out = np.zeros((*stack, count, words, 64, each), matrix.dtype)
    for row in range(n):
        for word in range(words):
            values = matrix[..., row, word * each : (word + 1) * each]
            out[..., row // 64, word, row % 64, : values.shape[-1]] = values
    return out.reshape(-1, words, 64 * each)
