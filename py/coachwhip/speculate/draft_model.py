"""A second, smaller model as a drafter."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..cache.pool import Pool
from ..cache.prefix_cache import PrefixCache
from ..config import EngineConfig
from ..runner import Runner
from ..sampling.sampler import Sampler
from ..schedule.chunks import chunk_end
from ..schedule.ownership import Ownership
from ..schedule.plan import PlannedSequence, StepPlan
from ..schedule.request import Request
from .drafter import Drafter, DraftStep

_clock = time.perf_counter


class DraftModelDrafter(Drafter):
    """Follows every text with a model of its own, and runs it ahead for drafts.

    The model's state after the accepted tokens is in a live slot; drafts are computed from it into
    a spare slot, which is no longer read when they are there. So a rejected draft leaves nothing
    behind, and what was accepted is computed once more, together with what is new. A text is
    followed from the first time that drafts are wanted for it, its prompt then being computed at
    once, and what it became while none were wanted likewise: `catch_up_s` is the time of that.

    The model has its own slots, pages and prefix cache. A request without room in them gets no
    drafts, one without a spare slot gets one, and texts that are too long for the model get none.

    Args:
        runner: The draft model.
        config: Its options; slots and pages are at most those of the runner's pools.
    """

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self.runner, self._config = runner, config
        slots, pages = config.num_state_slots, config.num_kv_pages
        self.cache = PrefixCache(
            Pool("draft state slots", slots) if slots else None,
            Pool("draft pages", pages) if pages else None,
            config.kv_cache_page_size,
            config.mamba_cache_mode,
            config.mamba_block_size,
        )
        self._ownership = Ownership(self.cache)
        self._followed: dict[str, Request] = {}

    def propose(self, step: DraftStep) -> dict[str, list[int]]:
        wanted, before = {}, {}
        given = {s.request_id: s.num_outputs for s in step.plan.sequences}
        for request_id, count in step.wanted.items():
            request = step.requests[request_id]
            room = self._config.max_model_len - request.num_tokens
            if room < 1:
                self.forget(request_id)
            elif (mine := self._follow(request)) is not None:
                wanted[mine] = min(count, room)
                before[mine] = mine.num_tokens - given[request_id]
        begin = _clock()
        self._compute({r: n for r, n in before.items() if r.num_computed < n}, step.samplers)
        self.catch_up_s = _clock() - begin
        drafts = self._compute({r: r.num_tokens for r in wanted}, step.samplers)
        self._run_ahead(drafts, wanted, step.samplers)
        return {request.request_id: found for request, found in drafts.items()}

    def forget(self, request_id: str) -> None:
        mine = self._followed.pop(request_id, None)
        if mine is not None:
            self._ownership.release(mine)

    def reset_cache(self) -> None:
        """Forgets all prefixes, as `Scheduler.reset_cache` does for the model."""
        self.cache.reset()
        for mine in self._followed.values():
            mine.publishes = False

    def check(self) -> None:
        """Raises AssertionError unless slots and pages are owned as they should be, between
        steps."""
        self._ownership.check(self._followed.values(), in_flight=False)

    def _follow(self, request: Request) -> Request | None:
        """Returns this model's copy of a request, with the newest tokens; None if there is no room
        for it."""
        mine = self._followed.get(request.request_id)
        if mine is None:
            prompt = request.prompt_token_ids
            most = min(request.max_tokens, self._config.max_model_len - len(prompt))
            mine = Request(request.request_id, prompt, most, cache_salt=request.cache_salt)
            mine.output_token_ids = list(request.output_token_ids)
            mine.prefix = self.cache.prefix(mine.cache_keys, mine.tokens)
            if not self._ownership.acquire(mine):
                return None
            self._followed[mine.request_id] = mine
        mine.output_token_ids += request.output_token_ids[len(mine.output_token_ids) :]
        return mine

    def _compute(
        self, ends: Mapping[Request, int], samplers: Mapping[str, Sampler]
    ) -> dict[Request, list[int]]:
        """Computes texts up to given numbers of tokens.

        Returns:
            The first draft after each text that is then computed whole, unless its logits are not
            finite.
        """
        drafts = {}
        mode = "none" if self.cache.slots is None else self.cache.mode
        while pending := [r for r, end in ends.items() if r.num_computed < end]:
            budget = self._config.max_num_batched_tokens
            chosen, sampled, sequences = [], [], []
            for request in pending:
                if not budget:
                    break
                begin, known = request.num_computed, request.num_tokens
                last, block = ends[request], self.cache.block
                end = chunk_end(mode, begin, last, budget, block, request.branch)
                budget -= end - begin
                chosen.append((request, end))
                self._ownership.take_pages(request, end)
                sequences.append(self._ownership.rows(request, end))
                if end == known:
                    sampled.append(samplers[request.request_id].row(end))
            copies = tuple(r.page_copy for r, _ in chosen if r.page_copy is not None)
            output = self.runner.execute(StepPlan(tuple(sequences), copies), sampled)
            tokens = zip(output.tokens.tolist(), output.finite.tolist(), strict=True)
            for request, end in chosen:
                request.num_computed = end
                self._ownership.release_sources(request)
                self._ownership.publish(request, leaves=False)
                if end == request.num_tokens:
                    token, finite = next(tokens)
                    if finite:
                        drafts[request] = [token]
        return drafts

    def _run_ahead(
        self,
        drafts: dict[Request, list[int]],
        wanted: Mapping[Request, int],
        samplers: Mapping[str, Sampler],
    ) -> None:
        """Adds the drafts after the first ones."""
        spare: dict[Request, int] = {}
        deeper = [request for request in drafts if wanted[request] > 1]
        try:
            deeper = [request for request in deeper if self._take_spare(request, spare)]
            while deeper:
                sequences = [self._draft_row(r, drafts[r], spare.get(r, -1)) for r in deeper]
                sampled = [
                    samplers[r.request_id].row(r.num_tokens + len(drafts[r]), tuple(drafts[r]))
                    for r in deeper
                ]
                output = self.runner.execute(StepPlan(tuple(sequences)), sampled)
                found = zip(deeper, output.tokens.tolist(), output.finite.tolist(), strict=True)
                deeper = []
                for request, token, finite in found:
                    if finite:
                        drafts[request].append(token)
                    if finite and len(drafts[request]) < wanted[request]:
                        deeper.append(request)
        finally:
            for request, slot in spare.items():
                if slot not in request.live_slots:
                    self.cache.slots.release(slot)

    def _take_spare(self, request: Request, spare: dict[Request, int]) -> bool:
        """Notes a slot for the states after a request's drafts; False if there is none."""
        if self.cache.slots is None:
            return True
        # While the state is in a checkpoint, nobody reads the live slot before it is written anew.
        slot = request.live_slots[0]
        if request.read_slot == slot:
            slot = self.cache.slots.take()
        if slot is not None:
            spare[request] = slot
        return slot is not None

    def _draft_row(self, request: Request, found: list[int], spare: int) -> PlannedSequence:
        """Plans the row of the last draft that was found; its state goes to the spare slot."""
        begin = request.num_tokens + len(found) - 1
        self._ownership.take_pages(request, begin + 1)
        return PlannedSequence(
            request.request_id,
            (found[-1],),
            begin,
            request.read_slot if len(found) == 1 else spare,
            (spare,),
            self._pages(request, begin + 1),
            1,
        )

    def _pages(self, request: Request, end: int) -> tuple[int, ...]:
        return tuple(request.pages[: -(-end // self._config.kv_cache_page_size)])
