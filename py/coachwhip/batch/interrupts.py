"""Ctrl-C and SIGTERM as a wish first, as an end the second time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible(on_first: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Yields what says whether an end is wished for.

    A wish, since an exception in the midst of a step or a write would leave things half done.

    Args:
        on_first: Called at the first signal; the second one raises KeyboardInterrupt.
    """
    wishes = 0

    def on_signal(signum: int, frame: object) -> None:
        nonlocal wishes
        wishes += 1
        if wishes > 1:
            raise KeyboardInterrupt
        on_first()

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield lambda: wishes > 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
