"""Conversions round like torch's, for every 16-bit value and for the hard float32 ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from max.dtype import DType

from coachwhip.checkpoint.convert import HELD, convert

TORCH = {
    DType.float32: torch.float32,
    DType.float16: torch.float16,
    DType.bfloat16: torch.bfloat16,
}
ALL_16_BITS = np.arange(1 << 16, dtype=np.uint16)


def by_torch(values: np.ndarray, source: DType, target: DType) -> np.ndarray:
    stored = torch.from_numpy(values.view(np.uint8).copy()).view(TORCH[source])
    converted = stored.to(TORCH[target])
    return converted.view(torch.uint8).numpy().view(HELD[target])


def as_float32(values: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype == DType.bfloat16:
        return torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16).float().numpy()
    return values.astype(np.float32)


def assert_same(got: np.ndarray, expected: np.ndarray, dtype: DType):
    """Equal bit for bit, but for the payload of NaN."""
    nan = np.isnan(as_float32(expected, dtype))
    np.testing.assert_array_equal(np.isnan(as_float32(got, dtype)), nan)
    bits = f"u{got.itemsize}"
    np.testing.assert_array_equal(got.view(bits)[~nan], expected.view(bits)[~nan])


def hard_float32() -> np.ndarray:
    """Ties, their neighbours, both zeros, denormals, the largest, infinities and NaN."""
    upper = np.random.default_rng(0).integers(0, 1 << 16, 20_000, dtype=np.uint32)
    lower = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = (upper[:, None] << 16 | lower).ravel()
    special = np.array(
        [0, 0x80000000, 1, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000,
         0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000], np.uint32
    )  # fmt: skip
    return np.concatenate([bits, special]).view(np.float32)


@pytest.mark.parametrize("source", [DType.float16, DType.bfloat16])
@pytest.mark.parametrize("target", list(TORCH))
def test_every_16_bit_value(source: DType, target: DType):
    values = ALL_16_BITS.view(HELD[source])
    assert_same(convert(values, source, target), by_torch(values, source, target), target)


@pytest.mark.parametrize("target", [DType.float16, DType.bfloat16])
def test_hard_float32_values(target: DType):
    values = hard_float32()
    got = convert(values, DType.float32, target)
    assert_same(got, by_torch(values, DType.float32, target), target)


def test_halves_round_to_even():
    ones = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)
    assert convert(ones, DType.float32, DType.bfloat16).tolist() == [0x3F80, 0x3F82, 0x3F81]


@pytest.mark.parametrize("size", [1, (1 << 16) - 1, (1 << 16) + 1, 3 << 16])
def test_arrays_longer_than_a_chunk(size: int):
    values = np.random.default_rng(1).standard_normal(size, np.float32)
    got = convert(values, DType.float32, DType.bfloat16)
    assert_same(got, by_torch(values, DType.float32, DType.bfloat16), DType.bfloat16)


def test_shape_is_kept_and_the_same_dtype_is_the_same_array():
    values = np.zeros((2, 3, 4), np.float32)
    assert convert(values, DType.float32, DType.bfloat16).shape == (2, 3, 4)
    assert convert(values, DType.float32, DType.float32) is values
