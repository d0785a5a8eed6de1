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


def packed(allowed: frozenset[int], vocab: int, spare: int = 0) -> NDArray:
    """Returns a mask as words: a bit for each token, and `spare` for those past the end."""
    bits = np.full(-(-vocab // 32) * 32, spare, np.uint8)
    bits[:vocab] = [token in allowed for token in range(vocab)]
    return np.packbits(bits, bitorder="little").view(np.int32)


def operands(logits: NDArray, rows: Sequence[Row]) -> list[Typed]:
    """Returns the operands of the op in its order.

    Rows that allow the same tokens share a mask; there is at least one, which allows nothing.
    """
    vocab = logits.shape[1]
    edits = [edit for row in rows for edit in row.edits]
    real = [(r.temperature, r.top_p, r.min_p, r.repetition, r.presence, r.frequency) for r in rows]
    whole = [(r.top_k, signed(r.seed), signed(r.seed >> 32), signed(r.position)) for r in rows]
    distinct = list(dict.fromkeys(row.allowed for row in rows if row.allowed is not None))
    masks = [packed(allowed, vocab, spare=i % 2) for i, allowed in enumerate(distinct)]
    return [
        typed(logits),
        typed(np.array(real, np.float32).reshape(-1, 6)),
        indices(np.array(whole, np.int32).reshape(-1, 4)),
        indices(np.cumsum([0, *(len(row.edits) for row in rows)])),
        indices([token for token, _, _ in edits]),
        indices([times for _, times, _ in edits]),
        typed(np.array([bias for _, _, bias in edits])),
        indices([-1 if row.allowed is None else distinct.index(row.allowed) for row in rows]),
        indices(np.array(masks or [packed(frozenset(), vocab)])),
    ]


def sampled(model: Model, logits: NDArray, rows: Sequence[Row]) -> list[int]:
    """Returns the token of each row."""
    return run(model, *operands(logits, rows)).stored[:, 0].tolist()
