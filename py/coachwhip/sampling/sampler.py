"""How one request's tokens are chosen: its settings and its edits, for any row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .edits import NOTHING, Edits, LogitEdits
from .guide import NOTHING_LEFT, Guide
from .params import SamplingParams


@dataclass(frozen=True)
class SampledRow:
    """What the sampling op takes for one row of logits.

    `real` is temperature, top_p, min_p, repetition, presence and frequency penalty; `whole` is
    top_k, the words of the seed, and the position of the chosen token in its sequence; `mask` the
    tokens that its grammar allows, see `Guide.mask`.
    """

    real: tuple[float, ...]
    whole: tuple[int, int, int, int]
    edits: Edits = NOTHING
    mask: np.ndarray | None = None


class Sampler:
    """Gives the rows of one request what chooses their tokens.

    Args:
        params: The request's parameters.
        seed: Of the noise, any whole number; its lowest 64 bits count.
        edits: The request's changes of logits.
        guide: Follows its grammar, if it has one.
    """

    def __init__(
        self, params: SamplingParams, seed: int, edits: LogitEdits, guide: Guide | None = None
    ) -> None:
        self._edits, self._guide = edits, guide
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
        self.plain = params.temperature == 0 and not edits.any and guide is None
        """Whether every row takes the most likely token as it is."""

    def refusal(self, token: int) -> str | None:
        """Returns why a chosen token cannot be the next one of the text, None if it can.

        Without any token that may come next the op gives token 0, which shows here.
        """
        if self._guide is None:
            return None
        if token == 0 and self._edits.forbids(token):
            return NOTHING_LEFT
        return self._guide.refusal(token)

    def append(self, token: int) -> None:
        """Takes note of a token of the text."""
        self._edits.append(token)
        if self._guide is not None:
            self._guide.append(token)

    @property
    def ended(self) -> bool:
        """Whether the text is complete by its grammar."""
        return self._guide is not None and self._guide.ended

    def useful(self, drafts: list[int]) -> list[int]:
        """Returns the first drafts, up to one that certainly is not chosen."""
        return drafts if self._guide is None else drafts[: self._guide.allowed(drafts)]

    def row(self, position: int, drafts: Sequence[int] = ()) -> SampledRow:
        """Returns the settings of a row.

        Args:
            position: Of the token that is chosen, counted from the first token of the prompt.
            drafts: Tokens between the text and that position.
        """
        whole = (self._top_k, self._low, self._high, position)
        mask = None if self._guide is None else self._guide.mask(drafts)
        return SampledRow(self._real, whole, self._edits.after(drafts), mask)
