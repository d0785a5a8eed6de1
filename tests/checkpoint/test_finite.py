"""NaN and infinite values are counted wherever they are."""

from __future__ import annotations

import numpy as np
import pytest
from max.dtype import DType

from coachwhip.checkpoint.convert import HELD, convert
from coachwhip.checkpoint.finite import count_nonfinite

SIZE = (1 << 20) + 77  # several chunks, the last one short


@pytest.mark.parametrize("dtype", list(HELD))
@pytest.mark.parametrize("place", [0, 1 << 18, (1 << 19) - 1, SIZE - 1])
def test_one_value_anywhere(dtype: DType, place: int):
    values = np.zeros(SIZE, np.float32)
    for value, counts in ((np.nan, (1, 0)), (-np.nan, (1, 0)), (np.inf, (0, 1)), (-np.inf, (0, 1))):
        values[place] = value
        assert count_nonfinite(convert(values, DType.float32, dtype), dtype) == counts


@pytest.mark.parametrize("dtype", [DType.float16, DType.bfloat16])
def test_all_16_bit_values(dtype: DType):
    values = np.arange(1 << 16, dtype=np.uint16).view(HELD[dtype])
    floats = convert(values, dtype, DType.float32)
    expected = (int(np.isnan(floats).sum()), int(np.isinf(floats).sum()))
    assert count_nonfinite(values, dtype) == expected
    assert expected[1] == 2


def test_finite_values_count_nothing():
    largest = np.array([3.4028235e38, -3.4028235e38, 0.0, -0.0, 1e-45], np.float32)
    assert count_nonfinite(largest, DType.float32) == (0, 0)
    assert count_nonfinite(np.empty(0, np.float32), DType.float32) == (0, 0)
