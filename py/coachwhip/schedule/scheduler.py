"""Decides which rows run in each step: by urgency and arrival, within a token budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from ..cache.prefix_cache import PrefixCache
from ..errors import EngineError, RequestError
from .chunks import chunk_end
from .ownership import Ownership
from .plan import StepPlan
from .queue import WaitingQueue
from .request import Request


class Scheduler:
    """Admits requests, plans steps, and commits them.

    A request is admitted when a slot is to be had and the pool can hold the pages of its longest
    possible text beside those reserved for others, so a running request can always go on. Decode
    rows come first in a step, each with the request's drafts as far as rows and slots are left when
    every other has its own; prompts share what is left of the budget in the order of admission, and
    a waiting request is admitted only when rows are left for it.

    `plan` and `commit` (or `fold` and `settle`, or `drop`) take turns; requests may be added,
    removed and preempted in between.

    Args:
        cache: The slots, the pages, and what is known of prefixes.
        max_num_seqs: Most requests that run at a time.
        max_num_batched_tokens: Most rows of a step.
        policy: `fcfs` or `priority`.
        chunked: Whether a prompt may be cut. If not, a request is admitted when a step has room for
            all its rows; the budget must be enough for the longest.
    """

    def __init__(
        self,
        cache: PrefixCache,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: str = "fcfs",
        chunked: bool = True,
    ) -> None:
        self.cache = cache
        self.chunked = chunked
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.queue = WaitingQueue(policy)
        self.running: dict[str, Request] = {}
        self.ownership = Ownership(cache)
        self.num_preemptions = 0
        self.on_restore: Callable[[Request], None] | None = None
        """Called with a request that was admitted to a prefix out of the cache."""
        self.on_preempt: Callable[[str], None] | None = None
        """Called with the id of a request that was sent back to the queue."""
        self._in_flight: dict[str, Request] | None = None
        self._leaving: list[Request] = []

    @property
    def has_unfinished(self) -> bool:
        return bool(self.queue or self.running)

    def add(self, request: Request) -> None:
        """Puts a request into the queue.

        Raises:
            RequestError: It needs more pages than there are; nothing is queued.
        """
        pages, needed = self.cache.pages, self.ownership.pages_needed(request)
        if pages is not None and needed > pages.total:
            raise RequestError(
                "max_tokens",
                request.max_tokens,
                f"{len(request.prompt_token_ids)} prompt tokens and {request.max_tokens} new ones "
                f"need {needed} pages of {self.cache.page_size} tokens, there are {pages.total}; "
                f"shorten the request or raise num_kv_pages to {needed}",
            )
        request.prefix = self.cache.prefix(request.cache_keys, request.tokens)
        self.queue.add(request)

    def plan(self) -> StepPlan:
        """Plans the next step; with no runnable request the plan is empty."""
        if self._in_flight is not None:
            raise RuntimeError("the step planned before is neither committed nor dropped")
        self._make_room()
        chosen: list[tuple[Request, int]] = []
        budget = self.max_num_batched_tokens
        urgency = self.queue.urgency
        ranked = [(urgency(r), not r.decodes, r) for r in self.running.values()]
        ranked.sort(key=itemgetter(0, 1))
        others = sum(not prefills for _, prefills, _ in ranked)
        for urgent, prefills, request in ranked:
            budget = self._admit(chosen, budget, before=urgent)
            others -= not prefills
            if budget and (not prefills or self._has_rows(request, budget)):
                budget = self._choose(chosen, request, budget, others)
        self._admit(chosen, budget)
        copies = tuple(r.page_copy for r, _ in chosen if r.page_copy is not None)
        # Slots for grid points inside chunks come last: caching gets what running leaves.
        chosen = [(r, self._with_candidates(r, end)) for r, end in chosen]
        plan = StepPlan(tuple(self.ownership.rows(r, end) for r, end in chosen), copies)
        if chosen:
            self._in_flight = {r.request_id: r for r, _ in chosen}
        return plan

    def is_in_flight(self, request: Request) -> bool:
        """Says whether the step in flight has rows of this very request."""
        return (self._in_flight or {}).get(request.request_id) is request

    def commit(self, plan: StepPlan, accepted: dict[str, list[int]], finished: set[str]) -> None:
        """Folds an executed step into the requests, publishes, and ends what is finished.

        Args:
            plan: The step that ran.
            accepted: Tokens that each sampling request keeps, at least one.
            finished: Requests of the step that are done; they release what they own.
        """
        self.fold(plan, accepted)
        self.settle(finished)

    def fold(self, plan: StepPlan, accepted: dict[str, list[int]]) -> None:
        """Folds an executed step into the requests: computed rows, new tokens, the kept state.

        Raises:
            ValueError: A sequence keeps no token although it sampled, or more than it sampled.
        """
        for sequence in plan.sequences:
            request = self._in_flight.get(sequence.request_id)
            if request is None:  # aborted while the step ran
                continue
            kept = accepted.get(request.request_id, ())
            if not min(1, sequence.num_outputs) <= len(kept) <= sequence.num_outputs:
                raise ValueError(
                    f"request {request.request_id}: {len(kept)} tokens accepted of "
                    f"{sequence.num_outputs} sampled"
                )
            request.output_token_ids.extend(kept)
            request.drafts = []
            before = request.num_computed
            request.num_computed += len(sequence.tokens) - sequence.num_outputs + len(kept)
            if sequence.num_scored:
                request.num_scored = min(request.num_computed, len(request.prompt_token_ids) - 1)
            self.ownership.release_sources(request)
            self.ownership.keep_candidate(request, before, len(kept))

    def settle(self, finished: set[str]) -> None:
        """Publishes what the folded step computed, and releases what finished requests own.

        Raises:
            EngineError: An audit found a checkpoint that is not what it stands for; all requests
                are settled nevertheless.
        """
        fault = None
        for request in self._land().values():
            leaves = request.request_id in finished
            try:
                self.ownership.publish(request, leaves)
            except EngineError as error:
                fault = fault or error
                self.ownership.release_boundary_slots(request)
            if leaves:
                del self.running[request.request_id]
                self.ownership.release(request)
        if fault is not None:
            raise fault

    def drop(self) -> None:
        """Gives up a planned step that did not run; its requests stay as they were."""
        for request in self._land().values():
            self.ownership.release_step_slots(request)

    def remove(self, request_id: str, spoiled: bool = False) -> None:
        """Takes a request out at any moment; unknown ids are fine.

        What it owns is released, once the step in flight has run if that may use it.

        Args:
            request_id: The request.
            spoiled: Its states may be worthless, so the checkpoints of its prefix are forgotten.
        """
        if self.queue.remove(request_id) is not None:
            return
        request = self.running.pop(request_id, None)
        if request is None:
            return
        if spoiled:
            self.cache.forget(request.prefix, request.num_computed)
        if self.is_in_flight(request):
            del self._in_flight[request_id]
            self._leaving.append(request)
        else:
            self.ownership.release(request)

    def preempt(self, request_id: str) -> None:
        """Sends a running request back to the queue; it resumes by a lookup of what was published.

        Raises:
            ValueError: It does not run, or has rows in the step in flight.
        """
        request = self.running.get(request_id)
        if request is None or self.is_in_flight(request):
            raise ValueError(f"request {request_id} does not run, or its step is in flight")
        del self.running[request_id]
        if request.page_copy is None:  # else nothing ran since its admission
            # A grid point that was reached without a spare slot to be published with has one now.
            request.num_noted = min(request.num_noted, max(0, request.num_computed - 1))
            self.ownership.publish(request, leaves=True)
        self.ownership.release(request)
        self.num_preemptions += 1
        if self.on_preempt is not None:
            self.on_preempt(request_id)
        self.queue.add(request)

    def reset_cache(self) -> None:
        """Forgets all prefixes; what was computed before is not found by anyone again."""
        self.cache.reset()
        for request in self.running.values():
            request.publishes = False

    def check(self) -> None:
        """Raises AssertionError unless the requests own exactly what the pools say."""
        assert not any(request_id in self.queue for request_id in self.running)
        owners = [*self.running.values(), *self._leaving]
        self.ownership.check(owners, self._in_flight is not None)

    def _land(self) -> dict[str, Request]:
        """Ends the step in flight; returns its requests that were not aborted meanwhile."""
        flight, self._in_flight = self._in_flight or {}, None
        for request in self._leaving:
            self.ownership.release(request)
        self._leaving = []
        return flight

    def _make_room(self) -> None:
        """Preempts running requests for a waiting one that is more urgent, if that suffices."""
        while (head := self.queue.head()) is not None and not self._fits(head):
            urgency = self.queue.urgency(head)
            worse = [r for r in self.running.values() if self.queue.urgency(r) > urgency]
            worse.sort(key=self.queue.rank, reverse=True)
            count = next((n for n in range(1, len(worse) + 1) if self._fits(head, worse[:n])), 0)
            if not count:
                return
            for victim in worse[:count]:
                self.preempt(victim.request_id)

    def _fits(self, request: Request, without: Sequence[Request] = ()) -> bool:
        """Says whether a request can be admitted, if those in `without` were not running."""
        if len(self.running) - len(without) >= self.max_num_seqs:
            return False
        return self.ownership.has_room(request, without)

    def _has_rows(self, request: Request, budget: int) -> bool:
        """Says whether so many rows are enough for a request's next step."""
        if self.chunked:
            return True
        known = request.num_computed
        if request.request_id not in self.running:
            known = self.ownership.lookup(request).length
        return request.num_rows - known <= budget

    def _admit(
        self, chosen: list[tuple[Request, int]], budget: int, before: int | None = None
    ) -> int:
        """Admits waiting requests in order while they fit; returns what is left of the budget.

        Args:
            chosen: Gets the admitted requests and where their rows end.
            budget: Rows that are left.
            before: Admit only requests more urgent than this.
        """
        while budget and (request := self.queue.head()) is not None:
            if before is not None and self.queue.urgency(request) >= before:
                break
            if not self._has_rows(request, budget):
                break
            if len(self.running) >= self.max_num_seqs or not self.ownership.acquire(request):
                break
            self.queue.remove(request.request_id)
            self.running[request.request_id] = request
            if self.on_restore is not None and request.num_computed:
                self.on_restore(request)
            budget = self._choose(chosen, request, budget)
        return budget

    def _choose(
        self, chosen: list[tuple[Request, int]], request: Request, budget: int, others: int = 0
    ) -> int:
        """Decides a request's rows and takes their pages; returns what is left of the budget.

        Args:
            chosen: Gets the request and where its rows end.
            request: A running request.
            budget: Rows that are left, at least 1.
            others: Rows of the budget that drafts must leave.
        """
        if request.decodes:
            room = request.max_tokens - len(request.output_token_ids) - 1
            end = request.num_tokens + min(
                len(request.drafts), max(0, budget - 1 - others), max(0, room)
            )
        else:
            end = chunk_end(
                "none" if self.cache.slots is None else self.cache.mode,
                request.num_computed,
                request.num_rows,
                budget,
                self.cache.block,
                request.branch,
            )
        self.ownership.take_pages(request, end)
        chosen.append((request, end))
        return budget - (end - request.num_computed)

    def _with_candidates(self, request: Request, end: int) -> int:
        """Takes slots for the states after a request's drafts; returns where its rows end."""
        drafts = end - request.num_tokens
        if drafts <= 0:
            return end
        return request.num_tokens + self.ownership.take_candidate_slots(request, drafts)
