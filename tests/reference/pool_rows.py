"""Rows of a pool to and from a tensor; -1 stands for no row."""

import numpy as np
from numpy.typing import NDArray


def load_rows(pool: NDArray, index: NDArray) -> NDArray:
    """Returns the rows, zeros where the index is -1."""
    rows = np.zeros((len(index), pool.shape[1]), pool.dtype)
    rows[index >= 0] = pool[index[index >= 0]]
    return rows


def store_rows(pool: NDArray, values: NDArray, index: NDArray) -> NDArray:
    """Returns the pool with the rows stored, but for those whose index is -1."""
    after = pool.copy()
    after[index[index >= 0]] = values[index >= 0]
    return after
