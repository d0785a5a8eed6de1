"""Typed arrays in three forms: float values, the bits a kernel sees, and MAX buffers over them.

numpy has no bfloat16, so its bits are kept as uint16 here.
"""

from dataclasses import dataclass

import numpy as np
from max.driver import Buffer
from max.dtype import DType
from max.engine import Model
from numpy.typing import NDArray

STORAGE = {
    DType.float32: np.float32,
    DType.float16: np.float16,
    DType.bfloat16: np.uint16,
    DType.int32: np.int32,
}


def encode(values: NDArray, dtype: DType) -> NDArray:
    """Rounds float values to the nearest of `dtype` (ties to even) and returns them as stored."""
    if dtype != DType.bfloat16:
        return np.array(values, STORAGE[dtype])
    bits = np.array(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def decode(stored: NDArray, dtype: DType) -> NDArray:
    """Returns stored values as float64."""
    if dtype == DType.bfloat16:
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


@dataclass
class Typed:
    """An array as stored, with its type. `values` are float64 copies, `bits` a view as integers."""

    stored: NDArray
    dtype: DType

    @property
    def values(self) -> NDArray:
        return decode(self.stored, self.dtype)

    @property
    def bits(self) -> NDArray:
        return self.stored.view(f"u{self.stored.itemsize}")

    def copy(self) -> "Typed":
        return Typed(self.stored.copy(), self.dtype)

    def rows(self, first: int, end: int) -> "Typed":
        """Returns a copy of rows [first, end)."""
        return Typed(self.stored[first:end].copy(), self.dtype)

    def columns(self, end: int) -> "Typed":
        """Returns a copy of columns [0, end) of the second axis."""
        return Typed(self.stored[:, :end].copy(), self.dtype)


def typed(values: NDArray, dtype: DType = DType.float32) -> Typed:
    """Rounds float values to `dtype`."""
    return Typed(encode(values, dtype), dtype)


def indices(values: NDArray | list[int]) -> Typed:
    """An int32 array: slots, rows, pages, lengths."""
    return Typed(np.array(values, np.int32), DType.int32)


def poison(shape: tuple[int, ...], dtype: DType) -> Typed:
    """An array of NaN, for what a kernel must not read or must overwrite."""
    return typed(np.full(shape, np.nan, np.float32), dtype)


def concatenated(arrays: list[Typed]) -> Typed:
    """Joins arrays of one type along their rows."""
    return Typed(np.concatenate([a.stored for a in arrays]), arrays[0].dtype)


def as_buffer(array: Typed) -> Buffer:
    """Returns a buffer over the array's memory: an op that changes it changes the array."""
    buffer = Buffer.from_numpy(array.stored)
    return buffer.view(array.dtype, array.stored.shape)


def run(model: Model, *arguments: Typed) -> Typed:
    """Executes a graph of one op; pools among the arguments are changed in place.

    Returns the op's output; an empty int32 array for a graph without one.
    """
    outputs = model.execute(*(as_buffer(a) for a in arguments))
    if not outputs:
        return indices([])
    (out,) = outputs
    if out.dtype == DType.bfloat16:
        return Typed(out.view(DType.uint16, out.shape).to_numpy(), out.dtype)
    return Typed(out.to_numpy(), out.dtype)


@dataclass(frozen=True)
class Tolerance:
    """|got - want| <= absolute * max(1, largest |want|) + relative * |want|."""

    absolute: float
    relative: float


TOLERANCE = {
    # Sums of a few hundred float32 products, and exp and log1p of a few ulp, against float64.
    DType.float32: Tolerance(absolute=2e-5, relative=2e-5),
    # Arithmetic is float32 whatever the type; one rounding to 11 bits follows, and where the
    # float32 value lies beside a midpoint it may go to the other neighbour: one ulp, 2^-10.
    DType.float16: Tolerance(absolute=2e-5, relative=2.0**-10),
    # The same with 8 bits.
    DType.bfloat16: Tolerance(absolute=2e-5, relative=2.0**-7),
}


def assert_close(got: Typed, want: NDArray, what: str) -> None:
    """Asserts that `got` is `want` within the tolerance of its type; NaN is never close."""
    assert got.stored.shape == want.shape, f"{what}: shape {got.stored.shape}, not {want.shape}"
    if want.size == 0:
        return
    limit = TOLERANCE[got.dtype]
    error = np.abs(got.values - want)
    allowed = limit.absolute * max(1.0, np.abs(want).max()) + limit.relative * np.abs(want)
    bad = ~(error <= allowed)
    assert not bad.any(), (
        f"{what}: {bad.sum()} of {bad.size} {got.dtype.name} values are off, the first at "
        f"{np.argwhere(bad)[0].tolist()}: {got.values[bad][0]}, not {want[bad][0]}"
    )


def assert_same_bits(got: Typed, want: Typed, what: str) -> None:
    """Asserts that two arrays hold the same bits; NaN equals itself."""
    assert got.stored.shape == want.stored.shape, (
        f"{what}: shape {got.stored.shape}, not {want.stored.shape}"
    )
    differing = np.argwhere(got.bits != want.bits)
    assert len(differing) == 0, (
        f"{what}: {len(differing)} of {got.bits.size} values differ, the first at "
        f"{differing[0].tolist()}: {got.stored[tuple(differing[0])]}, "
        f"not {want.stored[tuple(differing[0])]}"
    )
