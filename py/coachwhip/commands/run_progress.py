"""How far a row of comparing runs is: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

SECONDS_BETWEEN_LINES = 5.0

Advance = Callable[[bool], None]
"""Called after each run with whether it was equal."""


@contextmanager
def run_progress(name: str, total: int, stream: TextIO) -> Iterator[Advance]:
    """Shows progress on a stream until the block ends, and yields what advances it.

    Args:
        name: What runs, in front of each line.
        total: Number of runs.
        stream: Where it is shown.
    """
    if not stream.isatty():
        yield LineProgress(name, total, lambda line: print(line, file=stream, flush=True))
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=stream), transient=True) as progress:
        task = progress.add_task(name, total=total)
        yield lambda equal: progress.advance(task)


class LineProgress:
    """Says at first how many runs there will be, then every few seconds how many were equal."""

    def __init__(
        self,
        name: str,
        total: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._total, self._say, self._clock = name, total, say, clock
        self._done = self._different = 0
        self._due = clock() + SECONDS_BETWEEN_LINES
        say(f"{name}: {total} runs to compare")

    def __call__(self, equal: bool) -> None:
        self._done += 1
        self._different += not equal
        if self._clock() < self._due:
            return
        found = f"{self._different} not equal" if self._different else "all equal"
        self._say(f"{self._name}: {self._done} of {self._total} runs, {found} so far")
        self._due = self._clock() + SECONDS_BETWEEN_LINES
