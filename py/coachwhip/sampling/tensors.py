"""Lays out what the sampling op takes, beside a step's plan tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..reused import ReusedArrays
from .guide import mask_words
from .sampler import SampledRow

PLAIN_REAL = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)


class SamplingTensors:
    """Reused host buffers for the sampling tensors of a step.

    See `coachwhip_graphs.sample.sample` for their meaning.

    Args:
        vocab: The vocabulary size of the model that runs. Masks may be those of another one, that
            drafts for it or that it drafts for: what they do not say of tokens is no.
    """

    def __init__(self, vocab: int) -> None:
        self._words = mask_words(vocab)
        self._arrays = ReusedArrays()
        self._plain: list[np.ndarray] = []
        """The tensors of the last call, where no row had settings."""

    def lay_out(self, rows: Sequence[SampledRow | None]) -> list[np.ndarray]:
        """Returns the tensors in the graph's order; valid until the next call.

        Args:
            rows: One for each output row of the step; None takes the most likely token.
        """
        count = len(rows)
        plain = rows.count(None) == count
        if plain and self._plain and len(self._plain[0]) == count:
            return self._plain
        real = self._arrays.of("real", count * 6, np.float32).reshape(count, 6)
        whole = self._arrays.of("whole", count * 4).reshape(count, 4)
        start = self._arrays.of("edit_start", count + 1)
        real[:], whole[:], start[:] = PLAIN_REAL, 0, 0
        mask_row = self._arrays.of("mask_row", count)
        mask_row[:] = -1
        edits, masks = [], []
        for i, row in enumerate(rows):
            if row is not None:
                real[i], whole[i] = row.real, row.whole
                if len(row.edits[0]):
                    edits.append(row.edits)
                    start[i + 1] = len(row.edits[0])
                if row.mask is not None:
                    mask_row[i] = len(masks)
                    masks.append(row.mask)
        np.cumsum(start, out=start)
        found = []
        for name, dtype, part in (
            ("edit_token", np.int32, 0),
            ("edit_count", np.int32, 1),
            ("edit_bias", np.float32, 2),
        ):
            values = self._arrays.of(name, int(start[-1]), dtype)
            if edits:
                np.concatenate([e[part] for e in edits], out=values)
            found.append(values)
        tensors = [real, whole, start, *found, mask_row, self._packed(masks)]
        self._plain = tensors if plain else []
        return tensors

    def _packed(self, masks: Sequence[np.ndarray]) -> np.ndarray:
        """Returns masks one after another, [at least 1, words]; one that no row has is blank."""
        count = max(1, len(masks))
        packed = self._arrays.of("masks", count * self._words).reshape(count, self._words)
        packed[:] = 0
        for to, mask in zip(packed, masks, strict=False):
            words = min(len(mask), self._words)
            to[:words] = mask[:words]
        return packed
