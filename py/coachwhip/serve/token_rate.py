"""Tokens per second, as of the last few seconds."""

from __future__ import annotations

import time
from collections import deque

WINDOW_S = 5.0


class TokenRate:
    """Counts tokens as they come."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()
        self._begin = time.monotonic()

    def add(self, tokens: int) -> None:
        """Counts tokens that came now."""
        if tokens:
            self._counts.append((time.monotonic(), tokens))
            self._forget()

    @property
    def per_second(self) -> float:
        """Mean of the last `WINDOW_S` seconds, or of the time since the start if that is less."""
        self._forget()
        span = min(WINDOW_S, time.monotonic() - self._begin)
        return sum(count for _, count in self._counts) / max(span, 0.1)

    def _forget(self) -> None:
        oldest = time.monotonic() - WINDOW_S
        while self._counts and self._counts[0][0] < oldest:
            self._counts.popleft()
