"""What is remembered of prefixes whose state is not kept."""

from __future__ import annotations

from collections import OrderedDict


class History:
    """Prefixes that were computed once, and whether a checkpoint of them was evicted.

    Holds hashes only, the most recent `capacity` of them. It says where prompts part ways, which
    pages cannot (a pure Mamba2 model has none), and whether a miss is due to a small pool.
    """

    def __init__(self, capacity: int = 1 << 16) -> None:
        self._capacity = capacity
        self._evicted: OrderedDict[bytes, bool] = OrderedDict()

    def __len__(self) -> int:
        return len(self._evicted)

    def computed(self, key: bytes) -> None:
        """Notes that a prefix was computed."""
        self._note(key, self._evicted.get(key, False))

    def evicted(self, key: bytes) -> None:
        """Notes that the checkpoint of a prefix was evicted."""
        self._note(key, True)

    def knows(self, key: bytes) -> bool:
        """Says whether a prefix was computed."""
        return key in self._evicted

    def lost(self, key: bytes) -> bool:
        """Says whether the checkpoint of a prefix was evicted."""
        return self._evicted.get(key, False)

    def clear(self) -> None:
        """Forgets everything."""
        self._evicted.clear()

    def _note(self, key: bytes, evicted: bool) -> None:
        self._evicted[key] = evicted
        self._evicted.move_to_end(key)
        if len(self._evicted) > self._capacity:
            self._evicted.popitem(last=False)
