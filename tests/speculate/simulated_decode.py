"""Decoding with drafts on a clock that only counts: what drafts cost and how often they are right
is given, so a controller can be judged by the tokens it gets out of a second."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from coachwhip.speculate.control import DraftControl


@dataclass(frozen=True)
class Costs:
    """Seconds beside those of a step without drafts, which takes 1 for each request.

    Attributes:
        verify: Of verifying a number of drafts of one request.
        draft: Of proposing that many.
    """

    verify: Callable[[int], float]
    draft: Callable[[int], float] = lambda count: 0.0

    def best(self, most: int, rate: float) -> tuple[float, int]:
        """Returns the most tokens a second of a request, and the number of drafts they take."""
        speeds = (
            (sum(rate**i for i in range(k + 1)) / (1.0 + self.verify(k) + self.draft(k)), k)
            for k in range(most + 1)
        )
        return max(speeds)


@dataclass
class Run:
    """What came out; `drafted` has the numbers of drafts of each request's steps."""

    seconds: float = 0.0
    tokens: int = 0
    drafted: dict[str, list[int]] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def decode(
    control: DraftControl,
    costs: Costs,
    rates: dict[str, Callable[[int], float]],
    steps: int,
    seed: int = 0,
    noise: float = 0.0,
) -> Run:
    """Decodes requests together, and tells the controller what an engine tells it.

    Args:
        control: Asked for drafts after each step, as the engine does; so a step's time is that of
            verifying its own drafts and of proposing the next ones.
        costs: Of drafts.
        rates: Request -> step -> probability that a draft is right if those before it are.
        steps: Number of steps.
        seed: Of the draws.
        noise: Mean of what is added to each step, as a share of it.
    """
    draws, run = random.Random(seed), Run(drafted={name: [] for name in rates})
    wanted = dict.fromkeys(rates, 0)
    for step in range(steps):
        seconds, verified = float(len(rates)), sum(wanted.values())
        for name, rate in rates.items():
            drafts, right = wanted[name], 0
            while right < drafts and draws.random() < rate(step):
                right += 1
            run.tokens += 1 + right
            run.drafted[name].append(drafts)
            seconds += costs.verify(drafts)
            if drafts:
                control.verified(name, drafts, right)
        for name in rates:
            if wanted[name]:
                control.settle(name, len(rates))
        wanted = {name: control.length(name, len(rates)) for name in rates}
        seconds += sum(map(costs.draft, wanted.values()))
        seconds *= 1.0 + (draws.expovariate(1.0 / noise) if noise else 0.0)
        control.took(len(rates), verified, seconds)
        run.seconds += seconds
    return run
