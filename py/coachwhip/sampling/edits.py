"""What a request changes about its logits: biases, penalties, forbidden tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from .params import SamplingParams

Edits = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Distinct tokens [n] i32, how often the text has each [n] i32 (-1: neither prompt nor text has
it, or that is of no account), and what is added to its logit [n] f32."""

NOTHING: Edits = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))


class LogitEdits:
    """The edits of one request, kept up to date with its text.

    Args:
        params: The request's parameters.
        prompt_token_ids: Its prompt.
        bad_words: Token ids of each bad word.
        end_token_ids: Tokens that `min_tokens` forbids.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        bad_words: Sequence[tuple[int, ...]] = (),
        end_token_ids: Sequence[int] = (),
    ) -> None:
        self._penalizes = params.penalizes
        self._bad_words = tuple(bad_words)
        self._min_tokens = params.min_tokens
        self._ends = tuple(end_token_ids)
        self._longest = max(map(len, self._bad_words), default=1) - 1
        self._tail: list[int] = []
        """The last tokens of the text, as many as a bad word may begin with."""
        self._count = 0
        bias = params.logit_bias or {}
        known = set(prompt_token_ids) if params.repetition_penalty != 1.0 else set()
        tokens = [*bias, *(known - bias.keys())]
        self._at = {token: i for i, token in enumerate(tokens)}
        self._tokens = np.array(tokens, np.int32)
        self._counts = np.array([0 if t in known else -1 for t in tokens], np.int32)
        self._biases = np.array([bias.get(t, 0.0) for t in tokens], np.float32)

    @property
    def any(self) -> bool:
        """Whether a row of this request may have edits at all."""
        return bool(self._penalizes or len(self._tokens) or self._bad_words or self._min_tokens)

    def append(self, token: int) -> None:
        """Takes note of a token of the text."""
        self._count += 1
        if self._longest:
            self._tail = [*self._tail, token][-self._longest :]
        if self._penalizes:
            self._counts = self._counted(Counter((token,)))

    def after(self, drafts: Sequence[int] = ()) -> Edits:
        """Returns the edits of the row that chooses the token after the text and these drafts."""
        if not self.any:
            return NOTHING
        counts = self._counts
        if drafts and self._penalizes:
            counts = self._counted(Counter(drafts))
        tokens, biases = self._tokens[: len(counts)], self._biases[: len(counts)]
        forbidden = self._forbidden(drafts)
        if not forbidden:
            return tokens, counts, biases
        biases = biases.copy()
        new = []
        for token in forbidden:
            at = self._at.get(token, len(counts))
            if at < len(counts):
                biases[at] = -np.inf
            else:
                new.append(token)
        return (
            np.concatenate([tokens, np.array(new, np.int32)]),
            np.concatenate([counts, np.full(len(new), -1, np.int32)]),
            np.concatenate([biases, np.full(len(new), -np.inf, np.float32)]),
        )

    def forbids(self, token: int) -> bool:
        """Whether the token after the text must not be this one."""
        tokens, _, biases = self.after()
        return bool(((tokens == token) & (biases == -np.inf)).any())

    def _counted(self, more: Counter[int]) -> np.ndarray:
        """Returns the counts with more tokens in the text; unknown tokens get a place."""
        new = [t for t in more if t not in self._at]
        if new:
            self._at |= {t: len(self._tokens) + i for i, t in enumerate(new)}
            self._tokens = np.concatenate([self._tokens, np.array(new, np.int32)])
            self._biases = np.concatenate([self._biases, np.zeros(len(new), np.float32)])
        counts = np.full(len(self._tokens), -1, np.int32)
        counts[: len(self._counts)] = self._counts
        for token, times in more.items():
            counts[self._at[token]] = max(0, counts[self._at[token]]) + times
        return counts

    def _forbidden(self, drafts: Sequence[int]) -> set[int]:
        found = set()
        if self._count + len(drafts) < self._min_tokens:
            found.update(self._ends)
        if self._bad_words:
            text = [*self._tail, *drafts]
            for *begin, last in self._bad_words:
                if not begin or text[-len(begin) :] == begin:
                    found.add(last)
        return found
