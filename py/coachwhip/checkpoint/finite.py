"""Counts NaN and infinite weights.

The check reads every page of the files once, which loading does anyway sooner or later.
"""

from __future__ import annotations

import numpy as np
from max.dtype import DType

_INFINITY = {DType.float32: 0x7F800000, DType.float16: 0x7C00, DType.bfloat16: 0x7F80}
_CHUNK_BYTES = 1 << 20  # stays in the second-level cache between the passes over it


def count_nonfinite(values: np.ndarray, dtype: DType) -> tuple[int, int]:
    """Returns how many values are NaN and how many are infinite.

    In all three dtypes the magnitude bits order like integers, with infinity above every finite
    number and NaN above infinity, so that one integer maximum clears a chunk.

    Args:
        values: Contiguous; bfloat16 is held as uint16.
        dtype: float32, float16 or bfloat16.
    """
    bits = values.reshape(-1).view(f"u{values.itemsize}")
    infinity = bits.dtype.type(_INFINITY[dtype])
    magnitude = bits.dtype.type((1 << (8 * values.itemsize - 1)) - 1)
    step = _CHUNK_BYTES // values.itemsize
    nans = infinities = 0
    for start in range(0, bits.size, step):
        chunk = bits[start : start + step] & magnitude
        if chunk.max() >= infinity:
            nans += int(np.count_nonzero(chunk > infinity))
            infinities += int(np.count_nonzero(chunk == infinity))
    return nans, infinities
