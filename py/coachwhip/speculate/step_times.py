"""What drafts cost, from the measured times of decode steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

SAMPLES = 9
"""Newest steps of a kind whose times count."""
FEW = 3
"""Steps, with and without drafts, that are measured before drafts are judged. Of fewer of a kind
the fastest counts: a first step may be slow by far, and drafts would be off for long."""
REFRESH = 256
"""Steps with drafts after which all times are measured anew: texts grow, and machines change."""


class StepTimes:
    """Seconds of the newest steps with about one number of requests.

    Args:
        most: Most drafts of a request.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._plain: deque[float] = deque(maxlen=SAMPLES)
        self._drafted: dict[int, deque[tuple[float, float]]] = {}
        """By the mean number of drafts, rounded: (seconds, that mean) of each step."""
        self._tried: set[int] = set()
        """Numbers of drafts that were given only to measure them."""
        self._age = 0
        """Steps that drafts were wanted after, since the times were last forgotten."""
        self._from_trial = False
        """Whether all of `_drafted` was measured in a trial or after one."""
        self._proposed: float | None = None
        """Time of the last step, where it verified nothing and proposed."""

    @property
    def wants_plain(self) -> bool:
        """Whether a step without drafts has to be measured first."""
        return len(self._plain) < FEW or self._age >= REFRESH

    @property
    def wants_drafted(self) -> bool:
        """Whether drafts were measured too seldom to be given up."""
        return not self._from_trial and sum(map(len, self._drafted.values())) < FEW

    def add(self, seconds: float, mean_drafts: float, drafted: bool) -> None:
        """Takes note of a step.

        Args:
            seconds: Its time, that of proposing drafts for the next one included.
            mean_drafts: Drafts that it verified, for each request.
            drafted: Whether drafts were wanted for the next one.
        """
        self._age += drafted
        proposed, self._proposed = self._proposed, None
        if mean_drafts and drafted:
            self._add_drafted(seconds, mean_drafts)
        elif mean_drafts and proposed is not None and self._plain:
            # A trial: drafts were proposed in one step and verified in the next, after a rest. What
            # was measured before it is old.
            self._drafted.clear()
            self._from_trial = True
            self._add_drafted(proposed + seconds - _typical(self._plain), mean_drafts)
        elif drafted and not mean_drafts:
            self._proposed = seconds
        elif not mean_drafts:
            if self._age >= REFRESH:
                self._plain.clear()
                self._drafted.clear()
                self._tried.clear()
                self._from_trial = False
                self._age = 0
            self._plain.append(seconds)

    def costs(self) -> list[float] | None:
        """Returns the time that 0, 1, ... drafts add to a step, relative to one without any.

        What was not measured lies on the line between its neighbours, or beyond the last of them on
        that from 0. None where nothing was measured.
        """
        if not self._plain or not self._drafted:
            return None
        plain, known = _typical(self._plain), [(0, 0.0)]
        for count, steps in sorted(self._drafted.items()):
            seconds, mean = _typical(s for s, _ in steps), median(d for _, d in steps)
            known.append((count, max(0.0, seconds / plain - 1.0) / mean * count))
        costs = [0.0]
        for (low, cost), (high, dearer) in pairwise(known):
            step = (dearer - cost) / (high - low)
            costs += [cost + step * i for i in range(1, high - low + 1)]
        last, cost = known[-1]
        costs += [cost / last * count for count in range(last + 1, self._most + 1)]
        return costs[: self._most + 1]

    def to_measure(self, best: int) -> int:
        """Returns a number of drafts that is worth a step to measure it, or `best` where none is.

        Costs need not lie on lines: more rows may be free up to a point, and dear from there. So
        those beside the best are measured, and the halves of the most.
        """
        if not self._drafted:
            return best
        halves = [self._most >> i for i in range(1, self._most.bit_length())]
        for count in (best - 1, best + 1, *halves):
            if 1 <= count <= self._most and count not in self._drafted.keys() | self._tried:
                self._tried.add(count)
                return count
        return best

    def _add_drafted(self, seconds: float, mean_drafts: float) -> None:
        kind = max(1, round(mean_drafts))
        self._drafted.setdefault(kind, deque(maxlen=SAMPLES)).append((seconds, mean_drafts))


def _typical(seconds: Iterable[float]) -> float:
    """Returns the median of times, or of fewer than `FEW` the least."""
    listed = list(seconds)
    return median(listed) if len(listed) >= FEW else min(listed)
