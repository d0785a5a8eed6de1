"""Lays out what the sampling op takes, beside a step's plan tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..reused import ReusedArrays
from .sampler import SampledRow

PLAIN_REAL = (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)


class SamplingTensors:
    """Reused host buffers for the sampling tensors of a step.

    See `coachwhip_graphs.sample.sample` for their meaning.
    """

    def __init__(self) -> None:
        self._arrays = ReusedArrays()

    def lay_out(self, rows: Sequence[SampledRow | None]) -> list[np.ndarray]:
        """Returns the tensors in the graph's order; valid until the next call.

        Args:
            rows: One for each output row of the step; None takes the most likely token.
        """
        count = len(rows)
        real = self._arrays.of("real", count * 6, np.float32).reshape(count, 6)
        whole = self._arrays.of("whole", count * 4).reshape(count, 4)
        start = self._arrays.of("edit_start", count + 1)
        real[:], whole[:], start[:] = PLAIN_REAL, 0, 0
        edits = []
        for i, row in enumerate(rows):
            if row is not None:
                real[i], whole[i] = row.real, row.whole
                if len(row.edits[0]):
                    edits.append(row.edits)
                    start[i + 1] = len(row.edits[0])
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
        return [real, whole, start, *found]
