"""What a drafter is asked, without an engine."""

from __future__ import annotations

from collections.abc import Sequence

from coachwhip.schedule.plan import StepPlan
from coachwhip.schedule.request import Request
from coachwhip.speculate.drafter import DraftStep


def request(request_id: str, prompt: Sequence[int], text: Sequence[int] = ()) -> Request:
    """Returns a request that has generated a text."""
    made = Request(request_id, list(prompt), 1000)
    made.output_token_ids = list(text)
    return made


def step(requests: Sequence[Request], wanted: int | dict[str, int]) -> DraftStep:
    """Returns a step after which drafts are wanted, of all requests or of those named."""
    if isinstance(wanted, int):
        wanted = {r.request_id: wanted for r in requests}
    named = {r.request_id: r for r in requests}
    return DraftStep(StepPlan(()), None, named, frozenset(), wanted, {})
