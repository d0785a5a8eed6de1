"""Asks the drafter for drafts after each step, and counts what became of them."""

from __future__ import annotations

from collections.abc import Mapping

from ..runner import StepOutput
from ..sampling.sampler import Sampler
from ..schedule.plan import StepPlan
from ..schedule.request import Request
from .control import DraftControl
from .counts import DraftCounts
from .drafter import Drafter, DraftStep


class Speculator:
    """Decides how many drafts each request gets, has them proposed, and counts.

    Args:
        drafter: Proposes.
        most: Most drafts of a request.
        adaptive: Draft less where it does not pay.
    """

    def __init__(self, drafter: Drafter, most: int, adaptive: bool) -> None:
        self.drafter = drafter
        self.most = most
        self.control = DraftControl(most, adaptive)
        self.counts = DraftCounts()

    def verified(self, plan: StepPlan, accepted: Mapping[str, list[int]]) -> dict[str, tuple]:
        """Counts a step's drafts; returns (drafted, accepted) of each request that had any.

        Args:
            plan: The step that ran.
            accepted: Tokens that each request kept; requests that failed are missing.
        """
        found = {}
        for sequence in plan.sequences:
            drafts = sequence.num_outputs - 1
            kept = accepted.get(sequence.request_id)
            if drafts < 1 or not kept:
                continue
            right = len(kept) - 1
            self.counts.count(drafts, right)
            self.control.verified(sequence.request_id, drafts, right)
            found[sequence.request_id] = drafts, right
        for request_id in found:
            self.control.settle(request_id, len(plan.sequences))
        return found

    def propose(
        self,
        plan: StepPlan,
        output: StepOutput,
        requests: Mapping[str, Request],
        finished: frozenset[str],
        samplers: Mapping[str, Sampler],
        limits: Mapping[str, int | None],
    ) -> None:
        """Gives requests of a folded step their drafts for the next one.

        Args:
            plan: The step that ran.
            output: What it computed.
            requests: Those of the step that were not aborted.
            finished: Those that end with it.
            samplers: How tokens are chosen.
            limits: Most drafts of a request, where it asked for fewer.
        """
        wanted = {}
        for request_id, request in requests.items():
            if request_id in finished or not request.decodes:
                continue
            limit = limits.get(request_id)
            # A step keeps its drafts and one token more.
            left = request.max_tokens - len(request.output_token_ids) - 1
            count = min(self.most if limit is None else limit, left)
            if count > 0:
                count = min(count, self.control.length(request_id, len(requests)))
            if count > 0:
                wanted[request_id] = count
        step = DraftStep(plan, output, requests, finished, wanted, samplers)
        for request_id, drafts in self.drafter.propose(step).items():
            drafts = samplers[request_id].useful(drafts[: wanted[request_id]])
            requests[request_id].drafts = drafts

    def took(self, plan: StepPlan, seconds: float) -> None:
        """Takes note of the time of a step, drafting included but for what was caught up with."""
        rows, count = 0, len(plan.sequences)
        for sequence in plan.sequences:
            if sequence.num_outputs != len(sequence.tokens):
                self.control.skipped()
                return
            rows += sequence.num_outputs
        if count:
            seconds = max(0.0, seconds - self.drafter.catch_up_s)
            self.control.took(count, rows - count, seconds)

    def reset_cache(self) -> None:
        """Has a drafter with a prefix cache of its own forget that."""
        self.drafter.reset_cache()

    def forget(self, request_id: str) -> None:
        """Drops what is kept about a request that ends or is preempted."""
        self.drafter.forget(request_id)

    def ended(self, request_id: str) -> None:
        """Drops everything about a request that ends."""
        self.forget(request_id)
        self.control.forget(request_id)
