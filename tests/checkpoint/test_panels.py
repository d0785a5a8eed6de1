"""Matrices in panels against a layout made value by value."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coachwhip.checkpoint.to_panels import to_panels
from coachwhip.locate import kernels_dir
from coachwhip_graphs.panels import PANEL, panels_shape
from tests.reference.panels import panels

SIZES = st.integers(1, 150)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@given(stack=st.sampled_from([(), (1,), (3,)]), n=SIZES, k=SIZES, seed=st.integers(0, 9))
def test_layout(dtype, stack: tuple[int, ...], n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, 256, (*stack, n, k, dtype().itemsize), np.uint8).view(dtype)[..., 0]
    got = to_panels(matrix)
    assert got.dtype == dtype and got.shape == panels_shape(matrix.shape, dtype().itemsize)
    assert got.ctypes.data % 64 == 0 and got.flags.c_contiguous
    unsigned = f"u{dtype().itemsize}"  # random bits may be NaN
    assert np.array_equal(got.view(unsigned), panels(matrix).view(unsigned))


def test_matrix_at_an_odd_address() -> None:
    raw = np.arange(2 * 70 * 7 + 1, dtype=np.uint8)[1:]
    matrix = raw.view(np.uint16).reshape(70, 7)
    assert np.array_equal(to_panels(matrix), panels(matrix.copy()))


def test_whole_panels_take_no_more_room() -> None:
    shape = (5, 2 * PANEL, 6)
    assert prod(panels_shape(shape, 2)) == prod(panels_shape(shape, 4)) == prod(shape)


def test_kernel_has_the_same_panels() -> None:
    assert f"comptime PANEL = {PANEL}\n" in (kernels_dir() / "linear.mojo").read_text()
