"""A model whose state is a number: it notices every wrong slot, page, copy and order of writes."""

from __future__ import annotations

from coachwhip.cache.pool import Pool
from coachwhip.cache.prefix_cache import PrefixCache
from coachwhip.schedule.plan import StepPlan
from coachwhip.schedule.request import Request
from coachwhip.schedule.scheduler import Scheduler

VOCAB = 3
_PRIME = (1 << 61) - 1


def fold(tokens: list[int], state: int = 0) -> int:
    """Returns the state after more tokens: no two short sequences share one."""
    for token in tokens:
        state = (state * 1_000_003 + token + 1) % _PRIME
    return state


def next_token(state: int) -> int:
    return (state >> 9) % VOCAB


def continuation(prompt: list[int], count: int) -> list[int]:
    """Returns what the model generates after a prompt."""
    state, out = fold(prompt), []
    for _ in range(count):
        out.append(next_token(state))
        state = fold(out[-1:], state)
    return out


def head_row(hidden: int, following: int) -> int:
    """Returns what the draft head keeps for a position: it depends on the token after it."""
    return fold([following, following + 1], hidden)


def kept(request: Request, plan: StepPlan, sampled: list[int]) -> list[int]:
    """Returns the sampled tokens a request keeps: up to the first that no draft foresaw."""
    rows = next(s for s in plan.sequences if s.request_id == request.request_id)
    drafts = rows.tokens[len(rows.tokens) - rows.num_outputs + 1 :]
    count = next((i for i, d in enumerate(drafts) if d != sampled[i]), len(drafts)) + 1
    return sampled[: min(count, request.max_tokens - len(request.output_token_ids))]


def make_cache(
    slots: int | None,
    pages: int | None,
    page_size: int,
    mode: str,
    block: int,
    head: bool = False,
) -> PrefixCache:
    return PrefixCache(
        None if slots is None else Pool("slots", slots),
        None if pages is None else Pool("pages", pages),
        page_size,
        mode,
        block,
        head,
    )


class SimulatedModel:
    """Runs plans over pools of numbers; what is freed is overwritten with None.

    A slot holds the fold of the tokens of its state; row `r` of a page the fold of all tokens up to
    and including the one it stands for. With a draft head a page has a second number for each row,
    of its own and of the token after it.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        cache = scheduler.cache
        self.page_size = cache.page_size
        self.slots: list[int | None] = [None] * (cache.slots.total if cache.slots else 0)
        self.pages: list[list[int | None]] = [
            [None] * self.page_size for _ in range(cache.pages.total if cache.pages else 0)
        ]
        self.heads = [[None] * self.page_size for _ in self.pages]
        """What the draft head keeps in each page."""
        self.hidden: dict[Request, dict[int, int]] = {}
        """Request -> position -> hidden state that the head has not run over."""
        self.checkpoints: dict[int, int] = {}
        """Slot -> what it must hold as long as it is a checkpoint."""
        if cache.slots is not None:
            cache.slots.on_free = self._free_slot
            scheduler.ownership.on_publish = self._published
        if cache.pages is not None:
            cache.pages.on_free = self._free_page
        scheduler.on_restore = self._restored

    def execute(self, plan: StepPlan, live: dict[str, Request]) -> dict[str, list[int]]:
        """Runs a step; returns the tokens after the rows whose outputs each sequence asked for."""
        cache = self.scheduler.cache
        destinations = [d for _, d in plan.copies]
        assert len(set(destinations)) == len(destinations)
        assert not set(destinations) & {s for s, _ in plan.copies}
        for source, destination in plan.copies:
            self.pages[destination] = list(self.pages[source])
            self.heads[destination] = list(self.heads[source])
        written = [w for s in plan.sequences for w in s.write_slots if w >= 0]
        assert len(written) == len(set(written)), "a slot is written twice"
        read_alone = {s.read_slot for s in plan.sequences if s.read_slot not in s.write_slots}
        assert not read_alone & set(written), "a slot is written that another sequence reads"
        assert not any(cache.slots.is_cached(w) for w in written), "a checkpoint is written"
        before = list(self.slots)
        tokens = {}
        touched: dict[int, str] = {}
        for s in plan.sequences:
            request = live.get(s.request_id)
            states = self._run(s, before, touched)
            if request is not None:
                known = request.prompt_token_ids + request.output_token_ids
                rows = [*known, *request.drafts]
                end = s.num_computed + len(s.tokens)
                assert list(s.tokens) == rows[s.num_computed : end]
                assert s.num_outputs == max(0, end - len(known) + 1)
                assert states[-1] == fold(rows[:end])
                carry = before[s.read_slot] if before else None
                self._remember(request, s.num_computed, states, carry)
            if s.num_outputs:
                tokens[s.request_id] = [next_token(state) for state in states[-s.num_outputs :]]
        for s in plan.sequences:
            for page in s.pages:
                assert touched.get(page, s.request_id) == s.request_id, (
                    "a page is shared and written"
                )
        return tokens

    def run_head(self, lags=lambda request: False) -> None:
        """Runs the draft head over the accepted rows of the step in flight.

        Args:
            lags: Says for a request whether its rows wait for a later call.
        """
        if not self.scheduler.cache.ahead:
            return
        for request in self.scheduler.running.values():
            known = request.prompt_token_ids + request.output_token_ids
            if not self.scheduler.is_in_flight(request) or lags(request):
                continue
            hidden = self.hidden[request]
            for position in range(request.num_head_computed, request.num_computed):
                assert hidden[position] == fold(known[: position + 1]), "a rejected row is kept"
                page = request.pages[position // self.page_size]
                self.heads[page][position % self.page_size] = head_row(
                    hidden[position], known[position + 1]
                )
            request.num_head_computed = request.num_computed
            self.hidden[request] = {}

    def check(self) -> None:
        """Raises AssertionError unless checkpoints and the head's rows are what they stand for."""
        pool = self.scheduler.cache.slots
        if self.scheduler.cache.ahead:
            for request in self.scheduler.running.values():
                self._check_head(request)
        for slot in range(len(self.slots)):
            if pool.is_cached(slot):
                assert self.slots[slot] == self.checkpoints[slot], f"checkpoint {slot} changed"

    def _check_head(self, request: Request) -> None:
        known = request.prompt_token_ids + request.output_token_ids
        pages = list(request.pages)
        if request.page_copy is not None:  # planned, and not made yet
            source, destination = request.page_copy
            pages[pages.index(destination)] = source
        for position in range(request.num_head_computed):
            row = self.heads[pages[position // self.page_size]][position % self.page_size]
            want = head_row(fold(known[: position + 1]), known[position + 1])
            assert row == want, f"the head's row {position} is that of another sequence"

    def _remember(self, request: Request, begin: int, states: list[int], carry) -> None:
        """Keeps what the head needs of a step: its rows, and the carry of the slot it read."""
        if not self.scheduler.cache.ahead:
            return
        hidden = self.hidden.setdefault(request, {})
        if not begin:
            hidden.clear()
        if request.num_head_computed == begin - 1 and begin - 1 not in hidden:
            assert self.slots
            hidden[begin - 1] = carry
        hidden |= {begin + row: state for row, state in enumerate(states)}

    def _run(self, s, before: list[int | None], touched: dict[int, str]) -> list[int]:
        begin, size = s.num_computed, self.page_size
        if self.slots:
            state = before[s.read_slot] if s.read_slot >= 0 else 0
            assert (s.read_slot >= 0) == (begin > 0)
        else:
            state = self.pages[s.pages[(begin - 1) // size]][(begin - 1) % size] if begin else 0
        assert state is not None, "a freed state is read"
        if self.pages:
            assert len(s.pages) == -(-(begin + len(s.tokens)) // size)
            if begin:
                last = self.pages[s.pages[(begin - 1) // size]][(begin - 1) % size]
                assert last == state, "pages and state belong to different prefixes"
            rows = [self.pages[s.pages[i // size]][i % size] for i in range(begin)]
            assert None not in rows, "a freed row is read"
        states = []
        for row, token in enumerate(s.tokens):
            if self.pages and row == 0 and begin:
                assert all(
                    b is not None and fold([t], a) == b
                    for a, b, t in zip(
                        [0, *rows], rows, self._tokens_of(s.request_id), strict=False
                    )
                ), "a row of another prefix is read"
            state = fold([token], state)
            states.append(state)
            if s.write_slots[row] >= 0:
                self.slots[s.write_slots[row]] = state
            if self.pages:
                page = s.pages[(begin + row) // size]
                self.pages[page][(begin + row) % size] = state
                touched[page] = s.request_id
        return states

    def _tokens_of(self, request_id: str) -> list[int]:
        request = self.scheduler.running.get(request_id)
        return [] if request is None else request.prompt_token_ids + request.output_token_ids

    def _published(self, request: Request, boundary: int, slot: int) -> None:
        want = fold(request.tokens(0, boundary))
        assert self.slots[slot] == want, f"slot {slot} is published as what it is not"
        self.checkpoints[slot] = want

    def _restored(self, request: Request) -> None:
        known = request.prompt_token_ids + request.output_token_ids
        self.hidden.pop(request, None)
        assert 0 < request.num_computed < len(known)
        if self.slots:
            assert self.slots[request.read_slot] == fold(known[: request.num_computed])
        if self.scheduler.cache.ahead:
            assert request.num_head_computed == request.num_computed - bool(self.slots)
            self._check_head(request)

    def _free_slot(self, slot: int) -> None:
        self.slots[slot] = None

    def _free_page(self, page: int) -> None:
        self.pages[page] = [None] * self.page_size
        self.heads[page] = [None] * self.page_size
