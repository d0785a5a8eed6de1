"""What a drafter is, and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..runner import StepOutput
from ..sampling.sampler import Sampler
from ..schedule.plan import StepPlan
from ..schedule.request import Request


@dataclass(frozen=True)
class DraftStep:
    """A step that ran and is folded into its requests, and the drafts that are wanted after it.

    Attributes:
        plan: The step's rows.
        output: What it computed.
        requests: By id, those of the step that were not aborted.
        finished: Ids of those that end with the step.
        wanted: Request id -> most drafts, at least 1; each has its newest token left to compute.
        samplers: How each request's tokens are chosen; a drafter that chooses as the model does,
            with the same noise, is right more often.
    """

    plan: StepPlan
    output: StepOutput
    requests: Mapping[str, Request]
    finished: frozenset[str]
    wanted: Mapping[str, int]
    samplers: Mapping[str, Sampler]


class Drafter(Protocol):
    """Proposes tokens; a wrong one costs time, and changes no output."""

    catch_up_s: float = 0.0
    """Seconds of the last `propose` that went into what texts were before the step: once for each
    text, or each rest, and so no part of what drafts cost."""

    def propose(self, step: DraftStep) -> dict[str, list[int]]:
        """Returns drafts for requests in `step.wanted`, at most as many as wanted, maybe none."""
        ...

    def forget(self, request_id: str) -> None:
        """Drops what is kept about a request; unknown ids are fine."""
        ...

    def reset_cache(self) -> None:
        """Forgets cached prefixes, where the drafter has a cache of its own."""
