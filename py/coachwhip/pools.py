"""Allocates the state and page pools that a step graph changes in place."""

from __future__ import annotations

import numpy as np
from max.driver import Buffer, Device
from max.dtype import DType

from coachwhip_graphs.step import PoolSpec

_STORAGE = {DType.float32: np.float32, DType.float16: np.float16, DType.bfloat16: np.uint16}


def allocate_pool(pool: PoolSpec, rows: int, device: Device) -> Buffer:
    """Allocates a zeroed pool of `rows` slots or pages.

    On a CPU the memory comes from the system's zero pages, so rows that are never used cost no
    physical memory.

    Args:
        pool: Shape of a row, and dtype.
        rows: Number of rows.
        device: Where the pool lives.

    Returns:
        A buffer [rows, *row_shape] of the pool's dtype.
    """
    shape = (rows, *pool.row_shape)
    if not device.is_host:
        return Buffer.zeros(shape, pool.dtype, device)
    buffer = Buffer.from_numpy(np.zeros(shape, _STORAGE[pool.dtype]))
    return buffer.view(pool.dtype, shape) if pool.dtype == DType.bfloat16 else buffer
