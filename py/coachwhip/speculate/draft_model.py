"""A second, smaller model as a drafter."""

from __future__ import annotations

from collections.abc import Mapping

from ..cache.pool import Pool
from ..cache.prefix_cache import PrefixCache
from ..runner import Runner
from ..schedule.ownership import Ownership
from ..schedule.plan import PlannedSequence, StepPlan
from ..schedule.request import Request
from .drafter import DraftStep


class DraftModelDrafter:
    """Follows every text with a model of its own, and runs it ahead for drafts.

    The model's state after the accepted tokens is in a live slot; drafts are computed from it into
    a second slot, which nobody reads again. So a rejected draft leaves nothing behind, and what was
    accepted is computed once more, together with what is new. The model has its own slots, pages
    and prefix cache. Where those are all taken, a request gets no drafts.

    Args:
        runner: The draft model.
        sizes: Slots and pages are those of the runner's config.
    """

    def __init__(self, runner: Runner) -> None:
        config = runner.config
        self._runner, self._config = runner, config
        slots, pages = config.num_state_slots, config.num_kv_pages
        self._cache = PrefixCache(
            Pool("draft state slots", slots) if slots else None,
            Pool("draft pages", pages) if pages else None,
            config.kv_cache_page_size,
            config.mamba_cache_mode,
            config.mamba_block_size,
        )
        self._ownership = Ownership(self._cache)
        self._followed: dict[str, Request] = {}
        self._scratch: dict[str, int] = {}
        """Request id -> slot of states that drafts lead to."""

    def propose(self, step: DraftStep) -> dict[str, list[int]]:
        following = []
        for request_id, wanted in step.wanted.items():
            request = step.requests[request_id]
            if request.num_tokens + wanted <= self._config.max_model_len:
                mine = self._follow(request)
                if mine is not None:
                    following.append(mine)
        if not following:
            return {}
        drafts = {r.request_id: [t] for r, t in self._catch_up(following, step.samplers).items()}
        self._run_ahead(following, drafts, step)
        return drafts

    def forget(self, request_id: str) -> None:
        mine = self._followed.pop(request_id, None)
        if mine is not None:
            slot = self._scratch.pop(request_id, None)
            if slot is not None:
                self._cache.slots.release(slot)
            self._ownership.release(mine)

    def check(self) -> None:
        """Raises AssertionError unless slots and pages are owned as they should be."""
        for request_id, slot in self._scratch.items():
            self._followed[request_id].boundary_slots[-1] = slot
        self._ownership.check(self._followed.values(), in_flight=True)
        for request_id in self._scratch:
            del self._followed[request_id].boundary_slots[-1]

    def _follow(self, request: Request) -> Request | None:
        """Returns this model's copy of a request, up to date; None if there is no room for it."""
        mine = self._followed.get(request.request_id)
        if mine is not None and mine.prompt_token_ids is not request.prompt_token_ids:
            self.forget(request.request_id)  # the id names another request now
            mine = None
        if mine is None:
            mine = Request(
                request.request_id,
                request.prompt_token_ids,
                request.max_tokens,
                cache_salt=request.cache_salt,
            )
            mine.output_token_ids = list(request.output_token_ids)
            extra = () if mine.cache_salt is None else (mine.cache_salt,)
            mine.prefix = self._cache.prefix(extra, mine.tokens)
            pages, needed = self._cache.pages, self._ownership.pages_needed(mine)
            if (pages is not None and needed > pages.total) or not self._ownership.acquire(mine):
                return None
            self._followed[mine.request_id] = mine
            if self._cache.slots is not None:
                slot = self._cache.slots.take()
                if slot is None:
                    self.forget(mine.request_id)
                    return None
                self._scratch[mine.request_id] = slot
        mine.output_token_ids += request.output_token_ids[len(mine.output_token_ids) :]
        return mine

    def _catch_up(self, following: list[Request], samplers: Mapping) -> dict[Request, int]:
        """Computes all that is new of the texts; returns the first draft after each."""
        found = {}
        while pending := [r for r in following if r.num_computed < r.num_tokens]:
            budget, chosen = self._config.max_num_batched_tokens, []
            for request in pending:
                end = min(request.num_tokens, request.num_computed + budget)
                if end > request.num_computed:
                    chosen.append((request, end))
                    budget -= end - request.num_computed
            copies = tuple(r.page_copy for r, _ in chosen if r.page_copy is not None)
            sequences, sampled = [], []
            for request, end in chosen:
                sequences.append(self._rows(request, end))
                if end == request.num_tokens:
                    sampled.append(samplers[request.request_id].row(request.num_tokens))
            output = self._runner.execute(StepPlan(tuple(sequences), copies), sampled)
            tokens = iter(output.tokens.tolist())
            for request, end in chosen:
                request.num_computed = end
                self._ownership.release_sources(request)
                self._ownership.publish(request, leaves=False)
                if end == request.num_tokens:
                    found[request] = next(tokens)
        return found

    def _run_ahead(
        self, following: list[Request], drafts: dict[str, list[int]], step: DraftStep
    ) -> None:
        while deeper := [
            r for r in following if len(drafts[r.request_id]) < step.wanted[r.request_id]
        ]:
            sequences, sampled = [], []
            for request in deeper:
                found = drafts[request.request_id]
                begin = request.num_tokens + len(found) - 1
                self._ownership.take_pages(request, begin + 1)
                scratch = self._scratch.get(request.request_id, -1)
                sequences.append(
                    PlannedSequence(
                        request.request_id,
                        (found[-1],),
                        begin,
                        request.read_slot if len(found) == 1 else scratch,
                        (scratch,),
                        self._pages(request, begin + 1),
                        1,
                    )
                )
                sampled.append(step.samplers[request.request_id].row(begin + 1, tuple(found)))
            output = self._runner.execute(StepPlan(tuple(sequences)), sampled)
            for request, token in zip(deeper, output.tokens.tolist(), strict=True):
                drafts[request.request_id].append(token)

    def _rows(self, request: Request, end: int) -> PlannedSequence:
        begin = request.num_computed
        self._ownership.take_pages(request, end)
        self._ownership.take_boundary_slots(request, end)
        writes = [-1] * (end - begin)
        if request.live_slots:
            writes[-1] = request.live_slots[0]
        for boundary, slot in request.boundary_slots.items():
            writes[boundary - begin - 1] = slot
        return PlannedSequence(
            request.request_id,
            tuple(request.tokens(begin, end)),
            begin,
            request.read_slot,
            tuple(writes),
            self._pages(request, end),
            int(end == request.num_tokens),
        )

    def _pages(self, request: Request, end: int) -> tuple[int, ...]:
        return tuple(request.pages[: -(-end // self._config.kv_cache_page_size)])
