"""Times several programs in turn, so that whatever else the machine does hits all of them alike.

One round times each program a few calls in a row; the rounds repeat. Only ratios of programs that
were timed in the same rounds mean much on a shared machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Program = Callable[[], object]
"""One call of what is timed."""

PAUSE = 0.002
"""Seconds between two programs: threads of the one stop spinning before the other begins."""
SHORT = 0.005
"""Seconds below which a program gets a call that is not timed before those that are."""


@dataclass(frozen=True)
class Timing:
    """What was measured of one program, in microseconds per call."""

    median: float
    min: float
    n: int

    @staticmethod
    def of(seconds: list[float]) -> Timing:
        """Summarises the calls of one program; raises ValueError when there are none."""
        if not seconds:
            raise ValueError("seconds is empty, expected at least one call")
        return Timing(statistics.median(seconds) * 1e6, min(seconds) * 1e6, len(seconds))

    def of_each(self, parts: int) -> Timing:
        """Returns the time of one of `parts` equal pieces of work that a call does."""
        return Timing(self.median / parts, self.min / parts, self.n)


def calls_per_round(seconds: float) -> int:
    """Returns how many calls in a row are timed of a program that takes `seconds`: 1 to 10."""
    return max(1, min(10, int(0.002 / max(seconds, 1e-9))))


def rounds_within(budget: float, round_seconds: float, fewest: int, most: int) -> int:
    """Returns how many rounds fit a budget of seconds, within the given limits."""
    return max(fewest, min(most, int(budget / max(round_seconds, 1e-9))))


def _timed(program: Program) -> float:
    start = time.perf_counter()
    program()
    return time.perf_counter() - start


def interleave(
    programs: Mapping[str, Program], *, budget: float, fewest: int = 3, most: int = 40
) -> dict[str, Timing]:
    """Times programs in turn until the budget is spent.

    Args:
        programs: What to time, by name.
        budget: Seconds that all rounds may take together.
        fewest: Rounds that are run whatever they take.
        most: Rounds at most.

    Returns:
        The timing of each program, by name.
    """
    estimate = {name: min(_timed(p), _timed(p)) for name, p in programs.items()}
    repeats = {name: calls_per_round(seconds) for name, seconds in estimate.items()}
    one_round = sum(estimate[name] * (repeats[name] + 1) + PAUSE for name in programs)
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds_within(budget, one_round, fewest, most)):
        for name, program in programs.items():
            time.sleep(PAUSE)
            if estimate[name] < SHORT:
                program()
            seconds[name] += [_timed(program) for _ in range(repeats[name])]
    return {name: Timing.of(times) for name, times in seconds.items()}
