"""Operands of `sample` from rows of settings."""

from collections.abc import Sequence

import numpy as np
from max.engine import Model
from numpy.typing import NDArray

from tests.kernels.arrays import Typed, indices, run, typed
from tests.reference.sample import Row


def signed(word: int) -> int:
    """Returns the int32 with the bits of a word."""
    return (word & 0xFFFFFFFF ^ 1 << 31) - (1 << 31)


def operands(logits: NDArray, rows: Sequence[Row]) -> list[Typed]:
    """Returns the operands of the op in its order."""
    edits = [edit for row in rows for edit in row.edits]
    real = [(r.temperature, r.top_p, r.min_p, r.repetition, r.presence, r.frequency) for r in rows]
    whole = [(r.top_k, signed(r.seed), signed(r.seed >> 32), signed(r.position)) for r in rows]
    return [
        typed(logits),
        typed(np.array(real, np.float32).reshape(-1, 6)),
        indices(np.array(whole, np.int32).reshape(-1, 4)),
        indices(np.cumsum([0, *(len(row.edits) for row in rows)])),
        indices([token for token, _, _ in edits]),
        indices([times for _, times, _ in edits]),
        typed(np.array([bias for _, _, bias in edits])),
    ]


def sampled(model: Model, logits: NDArray, rows: Sequence[Row]) -> list[int]:
    """Returns the token of each row."""
    return run(model, *operands(logits, rows)).stored[:, 0].tolist()
