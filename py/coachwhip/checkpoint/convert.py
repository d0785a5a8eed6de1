"""Converts between float32, float16 and bfloat16 with numpy alone.

numpy has no bfloat16: such values are held as uint16, the upper half of the float32's bits.
Rounding is to nearest, ties to even; NaN stays NaN; what is too large becomes infinite.
"""

from __future__ import annotations

import numpy as np
from max.dtype import DType

STORED = {"F32": DType.float32, "F16": DType.float16, "BF16": DType.bfloat16}
"""The dtypes of the file format that can be converted."""

HELD = {DType.float32: np.float32, DType.float16: np.float16, DType.bfloat16: np.uint16}
"""numpy dtype that holds each dtype's bits."""

_CHUNK = 1 << 16  # values in flight: 256 KiB of float32, so that passes over them hit the cache


def convert(values: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """Returns the values in another dtype, of the same shape; `values` itself when it is the same.

    Args:
        values: Contiguous, of dtype `HELD[source]`.
        source: float32, float16 or bfloat16.
        target: One of the same.
    """
    if source == target:
        return values
    flat, result = values.reshape(-1), np.empty(values.size, HELD[target])
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN are counted elsewhere
        for start in range(0, flat.size, _CHUNK):
            chunk = flat[start : start + _CHUNK]
            result[start : start + _CHUNK] = _from_float32(_to_float32(chunk, source), target)
    return result.reshape(values.shape)


def _to_float32(values: np.ndarray, source: DType) -> np.ndarray:
    if source == DType.bfloat16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def _from_float32(values: np.ndarray, target: DType) -> np.ndarray:
    if target == DType.bfloat16:
        return _round_to_bfloat16(values)
    return values.astype(HELD[target], copy=False)


def _round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32)
    rounded = bits >> 16  # then in place: temporaries cost more than the arithmetic
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    result = rounded.astype(np.uint16)
    nan = np.isnan(values)
    if nan.any():  # rounding may have carried their bits over into infinity, or into a zero
        result[nan] = (bits[nan] >> 16) | 0x40
    return result
