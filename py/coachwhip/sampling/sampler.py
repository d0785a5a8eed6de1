"""How one request's tokens are chosen: its settings and its edits, for any row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .edits import NOTHING, Edits, LogitEdits
from .params import SamplingParams


@dataclass(frozen=True)
class SampledRow:
    """What the sampling op takes for one row of logits.

    `real` is temperature, top_p, min_p, repetition, presence and frequency penalty; `whole` is
    top_k, the words of the seed, and the position of the chosen token in its sequence.
    """

    real: tuple[float, ...]
    whole: tuple[int, int, int, int]
    edits: Edits = NOTHING


class Sampler:
    """Gives the rows of one request what chooses their tokens.

    Args:
        params: The request's parameters.
        seed: Of the noise, any whole number; its lowest 64 bits count.
        edits: The request's changes of logits.
    """

    def __init__(self, params: SamplingParams, seed: int, edits: LogitEdits) -> None:
        self.edits = edits
        self._real = (
            float(params.temperature),
            float(params.top_p),
            float(params.min_p),
            float(params.repetition_penalty),
            float(params.presence_penalty),
            float(params.frequency_penalty),
        )
        words = np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint32).view(np.int32)
        self._top_k, self._low, self._high = params.top_k, int(words[0]), int(words[1])
        self.plain = params.temperature == 0 and not edits.any
        """Whether every row takes the most likely token as it is."""

    def row(self, position: int, drafts: Sequence[int] = ()) -> SampledRow:
        """Returns the settings of a row.

        Args:
            position: Of the token that is chosen, counted from the first token of the prompt.
            drafts: Tokens between the text and that position.
        """
        whole = (self._top_k, self._low, self._high, position)
        return SampledRow(self._real, whole, self.edits.after(drafts))
