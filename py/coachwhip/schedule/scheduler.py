"""Decides which rows run in each step: first come, first served, within a token budget."""

from __future__ import annotations

from collections import deque

from ..cache.free_pool import FreePool
from .plan import PlannedSequence, StepPlan
from .request import Request


class Scheduler:
    """Admits requests to slots and pages and plans steps until each request is done.

    A request is admitted when a slot and the pages for its longest possible text are free, so a
    running request can always go on. Running requests come first in a step, in order of admission;
    a prompt longer than what is left of the budget is processed in chunks.

    Args:
        slots: State slots; None for a model without Mamba layers.
        pages: Pages; None for a model without attention layers.
        page_size: Tokens per page.
        max_num_seqs: Most requests that run at a time.
        max_num_batched_tokens: Most rows of a step.
    """

    def __init__(
        self,
        slots: FreePool | None,
        pages: FreePool | None,
        page_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self.slots = slots
        self.pages = pages
        self.page_size = page_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Request] = deque()
        self.running: dict[str, Request] = {}

    def add(self, request: Request) -> None:
        """Puts a request at the end of the queue."""
        self.waiting.append(request)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def pages_needed(self, request: Request) -> int:
        """Pages for the request's longest possible text; its last token is never computed."""
        if self.pages is None:
            return 0
        return -(-(len(request.prompt_token_ids) + request.max_tokens - 1) // self.page_size)

    def plan(self) -> StepPlan:
        """Plans the next step; with no runnable request the plan is empty."""
        self._admit()
        budget = self.max_num_batched_tokens
        planned = []
        for request in self.running.values():
            if budget == 0:
                break
            end = min(request.num_tokens, request.num_computed + budget)
            tokens = tuple(request.tokens(request.num_computed, end))
            budget -= len(tokens)
            slot = -1 if request.slot is None else request.slot
            planned.append(
                PlannedSequence(
                    request.request_id,
                    tokens,
                    request.num_computed,
                    read_slot=slot if request.num_computed else -1,
                    write_slots=(-1,) * (len(tokens) - 1) + (slot,),
                    pages=tuple(request.pages[: -(-end // self.page_size)]),
                    num_outputs=int(end == request.num_tokens),
                )
            )
        return StepPlan(tuple(planned))

    def commit(self, plan: StepPlan, accepted: dict[str, list[int]], finished: set[str]) -> None:
        """Folds an executed step into the requests: computed rows, new tokens, ends.

        Args:
            plan: The step that ran.
            accepted: Tokens that each sampling request keeps.
            finished: Requests that are done; they leave and free what they own.
        """
        for sequence in plan.sequences:
            request = self.running.get(sequence.request_id)
            if request is None:  # aborted while the step ran
                continue
            request.num_computed = sequence.num_computed + len(sequence.tokens)
            request.output_token_ids.extend(accepted.get(sequence.request_id, ()))
        for request_id in finished:
            self.remove(request_id)

    def remove(self, request_id: str) -> None:
        """Takes a request out, running or waiting, and frees what it owns; unknown ids are fine."""
        request = self.running.pop(request_id, None)
        if request is None:
            self.waiting = deque(r for r in self.waiting if r.request_id != request_id)
            return
        if request.slot is not None:
            self.slots.give_back([request.slot])
            request.slot = None
        if request.pages:
            self.pages.give_back(request.pages)
            request.pages = []

    def check(self) -> None:
        """Raises AssertionError unless exactly the running requests own slots and pages."""
        for pool, owned in (
            (self.slots, [r.slot for r in self.running.values() if r.slot is not None]),
            (self.pages, [p for r in self.running.values() for p in r.pages]),
        ):
            if pool is not None:
                pool.check()
                assert len(owned) == len(set(owned)), f"{pool.name}: owned twice"
                assert len(owned) + pool.free == pool.total, f"{pool.name}: leaked"

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            pages = self.pages_needed(request)
            if self.pages is not None and self.pages.free < pages:
                return
            if self.slots is not None:
                if not self.slots.free:
                    return
                (request.slot,) = self.slots.take(1)
            if self.pages is not None:
                request.pages = self.pages.take(pages)
            self.running[request.request_id] = self.waiting.popleft()
