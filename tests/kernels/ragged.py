"""Random ragged batches as the engine plans them, and a sequence cut into steps.

Slots are a permutation: those of a batch lie anywhere in the pool, some are free.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.kernels.arrays import Typed, indices

CHUNKS = [1, 2, 3, 5, 16, 64, 128]
"""Rows per step for which a sequence must give the bits that it gives whole."""

LENGTHS = st.one_of(
    st.integers(0, 3),
    st.integers(4, 40),
    st.sampled_from([15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129]),
)
"""Rows of a sequence: none, one, a few, many, and both sides of a tile's end."""


@dataclass(frozen=True)
class Ragged:
    """A ragged batch: seq_start [batch + 1], read_slot [batch], write_slot [tokens]."""

    seq_start: NDArray
    read_slot: NDArray
    write_slot: NDArray
    slots: int

    @property
    def tokens(self) -> int:
        return int(self.seq_start[-1])

    @property
    def slots_read(self) -> NDArray:
        """Slots whose contents count: those that a sequence with rows starts from."""
        used = (np.diff(self.seq_start) > 0) & (self.read_slot >= 0)
        return np.unique(self.read_slot[used])

    @property
    def slots_written(self) -> NDArray:
        return np.unique(self.write_slot[self.write_slot >= 0])

    @property
    def operands(self) -> list[Typed]:
        """seq_start, read_slot and write_slot as an op takes them."""
        return [indices(self.seq_start), indices(self.read_slot), indices(self.write_slot)]


def clipped(lengths: list[int], limit: int) -> list[int]:
    """Shortens sequences from the last one on until they have `limit` rows together."""
    ends = np.minimum(np.cumsum([0, *lengths]), limit)
    return np.diff(ends).tolist()


@st.composite
def ragged_batches(draw: st.DrawFn, max_tokens: int = 400) -> Ragged:
    """Draws a batch of up to 6 sequences, the empty batch and empty sequences included.

    A sequence starts from zeros, from its own live slot, or from a checkpoint that others may
    start from too. It keeps no state, the last one (in the live slot), the last one over and over
    in the live slot, or some on the way, each in a slot of its own.
    """
    lengths = clipped(draw(st.lists(LENGTHS, max_size=6)), max_tokens)
    read_slot, write_slot = [], []
    checkpoint, next_slot = 0, 1
    for rows in lengths:
        live, next_slot = next_slot, next_slot + 1
        read_slot.append(draw(st.sampled_from([-1, live, checkpoint])))
        writes = [-1] * rows
        match draw(st.sampled_from(["nothing", "last", "every row", "on the way"])):
            case "last" if rows:
                writes[-1] = live
            case "every row":
                writes = [live] * rows
            case "on the way" if rows:
                for t in draw(st.sets(st.integers(0, rows - 1), max_size=6)):
                    writes[t], next_slot = next_slot, next_slot + 1
        write_slot += writes
    slots = next_slot + draw(st.integers(0, 3))
    home = np.array([*draw(st.permutations(range(slots))), -1])
    return Ragged(
        seq_start=np.cumsum([0, *lengths]),
        read_slot=home[np.array(read_slot, int)],
        write_slot=home[np.array(write_slot, int)],
        slots=slots,
    )


def padding() -> Ragged:
    """Two sequences of a captured graph that nobody rides in: no rows, no slots."""
    return Ragged(np.array([0, 0, 0]), np.array([-1, -1]), np.array([], int), 2)


def one_sequence(rows: int, read_slot: int, write_slot: NDArray, slots: int) -> Ragged:
    """A batch of one sequence."""
    return Ragged(np.array([0, rows]), np.array([read_slot]), write_slot, slots)


def surrounded(inner: Ragged, before: int, after: int) -> Ragged:
    """Puts other sequences, which keep no state, before and after a batch's."""
    rows = inner.tokens
    starts = [0, *(inner.seq_start + before), before + rows + after]
    return Ragged(
        seq_start=np.array(starts),
        read_slot=np.array([-1, *inner.read_slot, -1]),
        write_slot=np.array([*[-1] * before, *inner.write_slot, *[-1] * after], int),
        slots=inner.slots,
    )


def steps(rows: int, chunk: int) -> list[tuple[int, int]]:
    """Cuts rows into steps of `chunk` rows: [(first, end), ...]."""
    return [(first, min(first + chunk, rows)) for first in range(0, rows, chunk)]
