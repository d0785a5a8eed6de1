"""The steps of an engine: plan, execute, accept, draft, commit, emit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .live_request import NOT_FINITE, LiveRequest
from .metrics import StepCounts
from .outputs import RequestOutput
from .runner import Runner, StepOutput
from .sampling.sampler import SampledRow
from .schedule.plan import PlannedSequence, StepPlan
from .schedule.scheduler import Scheduler
from .speculate.speculator import Speculator

_clock = time.perf_counter


@dataclass(frozen=True)
class Flight:
    """A planned step that runs, or is about to.

    Attributes:
        plan: Its rows.
        sampled: How the token after each output row is chosen.
        plan_s: Seconds that planning took.
    """

    plan: StepPlan
    sampled: Sequence[SampledRow | None]
    plan_s: float


class StepLoop:
    """The simple loop: one step after another.

    What a step gives is taken in two parts. `_land` does all that the next plan depends on: which
    tokens are kept, what is published, drafts. `_complete` then completes the outputs.

    Args:
        runner: The model.
        scheduler: Plans the steps.
        speculator: Has drafts proposed; None for none.
        live: The unfinished requests by id; those that end are taken out.
        counts: Counts the steps.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        speculator: Speculator | None,
        live: dict[str, LiveRequest],
        counts: StepCounts,
    ) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.speculator = speculator
        self.live = live
        self.counts = counts
        self._grown: list[LiveRequest] = []
        """Requests of landed steps whose outputs are not handed out yet."""
        self._scored: list[LiveRequest] = []
        """Those whose prompt logprobs are not made yet."""

    @property
    def has_outputs(self) -> bool:
        """Whether outputs grew that no step has returned yet."""
        return bool(self._grown)

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the outputs that grew or ended with it.

        Raises:
            EngineError: The step failed as a whole; the requests it ran are ended with an error.
                What grew of others is returned by the next call.
        """
        try:
            self._advance()
        finally:  # what grew is whole, whether it is returned now or after the error
            self._complete()
        grown, self._grown = self._grown, []
        return [live.output for live in grown]

    def land(self) -> None:
        """Waits for the step that runs, and takes what it gives; `step` hands that out."""

    def end(self, request_id: str, reason: str, error: str | None = None) -> None:
        """Ends a request at once, also one whose output is not handed out yet.

        What it owns is released when no step uses it. Unknown ids are fine.
        """
        self._grown = [g for g in self._grown if g.request.request_id != request_id]
        live = self.live.get(request_id)
        if live is not None:
            live.end(reason, error)
            self._forget(request_id)
            self.scheduler.remove(request_id)

    def end_at_once(self, request_id: str) -> None:
        """Ends a request that has no rows to compute; the next step hands its output out."""
        live = self.live[request_id]
        live.end("length")
        self._grown.append(live)
        self.counts.prompt_tokens += len(live.request.prompt_token_ids)
        self._forget(request_id)

    def _advance(self) -> None:
        """Runs one step, unless outputs of another are not handed out yet."""
        if not self._grown and (flight := self._plan()) is not None:
            self._land(flight)

    def _plan(self) -> Flight | None:
        """Plans the next step; None where there is nothing to run."""
        begin = _clock()
        plan = self.scheduler.plan()
        if not plan.sequences:
            return None
        now = time.monotonic()
        for sequence in plan.sequences:
            live = self.live[sequence.request_id]
            live.started_s = live.started_s or now
        try:
            sampled = self._sampled_rows(plan)
        except BaseException as error:
            self._give_up(plan, error)
            raise
        return Flight(plan, sampled, _clock() - begin)

    def _execute(self, flight: Flight) -> StepOutput:
        """Returns what a planned step gives."""
        return self.runner.execute(flight.plan, flight.sampled)

    def _land(self, flight: Flight) -> None:
        """Takes what a step gives, so that the next one can be planned."""
        plan, seconds = flight.plan, self.counts.seconds
        try:
            out = self._execute(flight)
            at_accept = _clock()
            accepted = self._accept(plan, out)
            at_draft = _clock()
            self.scheduler.fold(plan, accepted)
            finished = frozenset(i for i in accepted if self.live[i].output.finished)
            self._draft(plan, out, accepted, finished)
        except BaseException as error:
            self._give_up(plan, error)
            raise
        at_commit = _clock()
        try:
            self.scheduler.settle(finished)
        finally:
            for request_id in finished:
                self.counts.prompt_tokens += len(self.live[request_id].request.prompt_token_ids)
                self._forget(request_id)
            self.counts.steps += 1
            self.counts.generation_tokens += sum(map(len, accepted.values()))
            end = _clock()
            seconds.plan += flight.plan_s
            seconds.tensors += out.tensors_s
            seconds.execute += out.graph_s
            seconds.accept += at_draft - at_accept
            seconds.draft += at_commit - at_draft
            seconds.commit += end - at_commit
        if self.speculator is not None:
            self.speculator.took(
                plan, flight.plan_s + out.tensors_s + out.graph_s + end - at_accept
            )

    def _complete(self) -> None:
        """Completes the outputs that grew."""
        begin = _clock()
        scored, self._scored = self._scored, []
        for live in (*scored, *self._grown):
            live.emit()
        self.counts.seconds.accept += _clock() - begin

    def _sampled_rows(self, plan: StepPlan) -> list[SampledRow | None]:
        """Returns how the token after each output row of a plan is chosen."""
        rows: list[SampledRow | None] = []
        for sequence in plan.sequences:
            live, count = self.live[sequence.request_id], sequence.num_outputs
            rows += [None] * sequence.num_scored
            if live.sampler.plain:
                rows += [None] * count
                continue
            position = live.request.num_tokens
            rows += [live.sampler.row(position + i, sequence.drafts[:i]) for i in range(count)]
        return rows

    def _accept(self, plan: StepPlan, out: StepOutput) -> dict[str, list[int]]:
        """Decides which tokens each request keeps; requests that fail are taken out."""
        accepted, end = {}, 0
        for sequence in plan.sequences:
            begin, end = end, end + sequence.num_logits
            live = self.live.get(sequence.request_id)
            if live is None or not self.scheduler.is_in_flight(live.request):
                continue  # aborted while the step ran
            first = begin + sequence.num_scored
            if sequence.num_scored:
                self._score_prompt(live, sequence, out.logits[begin:first], out.finite[begin:first])
            if first == end and not live.output.finished:
                continue  # no token yet
            kept = []
            if not live.output.finished:
                rows = slice(first, end)
                kept = live.accept(
                    sequence.drafts, out.tokens[rows].tolist(), out.logits[rows], out.finite[rows]
                )
            live.output.num_cached_tokens = live.request.num_cached_tokens
            self._grown.append(live)
            if live.output.error is not None:
                # Taken out before the commit, so that nothing of this step is published.
                self._forget(sequence.request_id)
                self.scheduler.remove(sequence.request_id, spoiled=True)
            else:
                accepted[sequence.request_id] = kept
        return accepted

    def _score_prompt(
        self,
        live: LiveRequest,
        sequence: PlannedSequence,
        logits: np.ndarray,
        finite: np.ndarray,
    ) -> None:
        """Takes the logits of prompt rows; a request that wants nothing else may end with them."""
        if not finite.all():
            live.end("error", NOT_FINITE)
            return
        live.score_prompt(logits)
        self._scored.append(live)
        computed = sequence.num_computed + len(sequence.tokens)
        if not live.request.max_tokens and computed == live.request.num_rows:
            live.end("length")

    def _draft(
        self,
        plan: StepPlan,
        out: StepOutput,
        accepted: dict[str, list[int]],
        finished: frozenset[str],
    ) -> None:
        """Counts the drafts of a folded step, and has new ones proposed."""
        if self.speculator is None:
            return
        for request_id, (drafts, right) in self.speculator.verified(plan, accepted).items():
            output = self.live[request_id].output
            output.num_drafted_tokens += drafts
            output.num_accepted_tokens += right
        lives = [
            live
            for sequence in plan.sequences
            if (live := self.live.get(sequence.request_id)) is not None
            and self.scheduler.is_in_flight(live.request)
        ]
        self.speculator.propose(
            plan,
            out,
            {live.request.request_id: live.request for live in lives},
            finished,
            {live.request.request_id: live.sampler for live in lives},
            {live.request.request_id: live.most_drafts for live in lives},
        )

    def _forget(self, request_id: str) -> None:
        """Drops what is kept about a request that has ended."""
        del self.live[request_id]
        if self.speculator is not None:
            self.speculator.ended(request_id)

    def _give_up(self, plan: StepPlan, error: BaseException) -> None:
        """Drops a step that did not run to its end, and ends its requests: their state is lost."""
        lives = [self.live.get(sequence.request_id) for sequence in plan.sequences]
        lost = [live for live in lives if live and self.scheduler.is_in_flight(live.request)]
        self.scheduler.drop()
        for live in lost:
            self.end(live.request.request_id, "error", f"the step failed: {error}")
