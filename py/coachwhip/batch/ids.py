"""Millions of ids as 16 bytes each."""

from __future__ import annotations

import numpy as np

from .line import DIGEST_BYTES, id_digest

_WORDS = np.dtype([("high", ">u8"), ("low", ">u8")])


class IdList:
    """Ids in the order they were added, each kept as a digest."""

    def __init__(self) -> None:
        self._digests = bytearray()

    def __len__(self) -> int:
        return len(self._digests) // DIGEST_BYTES

    def add(self, custom_id: str) -> None:
        self._digests += id_digest(custom_id)

    def first_repeated(self) -> tuple[int, int] | None:
        """Returns the places of an id that is there twice; None when all differ."""
        found = self._words()
        order = np.lexsort((found["low"], found["high"]))
        ordered = found[order]
        (again,) = np.nonzero(ordered[1:] == ordered[:-1])
        if not len(again):
            return None
        # lexsort is stable: of equal ids the earlier line comes first.
        later = int(order[again + 1].min())
        earlier = int(np.nonzero(found == found[later])[0][0])
        return earlier, later

    def also_in(self, other: IdList) -> np.ndarray:
        """Returns for each id of this list whether it is in the other: [len] bool."""
        if not len(other):
            return np.zeros(len(self), bool)
        theirs = np.sort(other._keys())
        mine = self._keys()
        at = np.minimum(np.searchsorted(theirs, mine), len(theirs) - 1)
        return theirs[at] == mine

    def _words(self) -> np.ndarray:
        return np.frombuffer(self._digests, _WORDS)

    def _keys(self) -> np.ndarray:
        # Fixed-width bytes sort and compare as they are; trailing zeros do not make two equal.
        return np.frombuffer(self._digests, f"S{DIGEST_BYTES}")
