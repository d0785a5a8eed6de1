"""Drafts by prompt lookup: what followed the last time the text ended like this."""

from __future__ import annotations

import numpy as np

from ..schedule.request import Request
from .drafter import Drafter, DraftStep


class NgramDrafter(Drafter):
    """Finds the longest last n-gram that occurred before, and proposes what followed it.

    Of several occurrences the latest counts. Where it ends close to the text's end, the drafts
    themselves are read on, so that a repeated passage goes on repeating.

    Args:
        least: Fewest tokens that must be equal.
        most: Most tokens that are compared.

    See: Saxena 2023, prompt lookup decoding.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._texts: dict[str, _Text] = {}

    def propose(self, step: DraftStep) -> dict[str, list[int]]:
        found = {}
        for request_id, count in step.wanted.items():
            text = self._texts.setdefault(request_id, _Text())
            drafts = continuation(
                text.read(step.requests[request_id]), count, self._least, self._most
            )
            if drafts:
                found[request_id] = drafts
        return found

    def forget(self, request_id: str) -> None:
        self._texts.pop(request_id, None)


class _Text:
    """The tokens of a request as an array; only new ones are read."""

    def __init__(self) -> None:
        self._tokens = np.empty(64, np.int32)
        self._length = 0

    def read(self, request: Request) -> np.ndarray:
        length = request.num_tokens
        if length > self._tokens.size:
            longer = np.empty(2 * length, np.int32)
            longer[: self._length] = self._tokens[: self._length]
            self._tokens = longer
        self._tokens[self._length : length] = request.tokens(self._length, length)
        self._length = length
        return self._tokens[:length]


def continuation(text: np.ndarray, count: int, least: int, most: int) -> list[int]:
    """Returns `count` tokens that followed the latest earlier occurrence of the text's end.

    Args:
        text: [tokens] i32, at least one.
        count: Drafts wanted.
        least: Fewest tokens of the end that must occur; with fewer the result is empty.
        most: Most tokens that are compared; the longest match wins.
    """
    last = len(text) - 1
    ends, best = np.flatnonzero(text[:last] == text[last]), None
    for size in range(1, most + 1):  # the texts that end at `ends` are equal in `size` tokens
        if not len(ends):
            break
        if size >= least:
            best = int(ends[-1])
        ends = ends[ends >= size]
        ends = ends[text[ends - size] == text[last - size]]
    if best is None:
        return []
    drafts = text[best + 1 : best + 1 + count].tolist()
    while len(drafts) < count:
        drafts.append(drafts[len(drafts) - (last - best)])
    return drafts
