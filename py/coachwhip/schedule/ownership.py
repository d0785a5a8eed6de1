"""What requests own of the pools: taken at admission and as rows need it, published, released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ..cache.prefix_cache import Hit, PrefixCache
from .plan import PlannedSequence
from .request import Request


class Ownership:
    """Moves slots and pages between the pools and the requests.

    Pages for the longest possible text of each admitted request are reserved, a number only, so a
    running request always gets its next page; until then the cache keeps what it has in them. Slots
    beyond a request's live one are taken for a step: those for the states after drafts (where there
    are none, fewer drafts are verified), and those for caching (where there are none, nothing is
    published).

    Args:
        cache: The slots, the pages, and what is known of prefixes.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.reserved_pages = 0
        self.on_publish: Callable[[Request, int, int], None] | None = None
        """Called with a request, a grid point and the slot that became its checkpoint."""

    def pages_needed(self, request: Request) -> int:
        """Pages for the request's longest possible text; its last token is never computed."""
        if self.cache.pages is None:
            return 0
        rows = len(request.prompt_token_ids) + request.max_tokens - 1
        return -(-rows // self.cache.page_size)

    def lookup(self, request: Request) -> Hit:
        """Finds what the cache has of a request's prefix, as far as the request may take it."""
        most = request.most_restored
        hit = self.cache.lookup(request.prefix, most + 1)
        if hit.miss == "too_short" and most < request.num_tokens - 1:
            return Hit(miss="prompt_logprobs")
        return hit

    def has_room(
        self, request: Request, without: Sequence[Request] = (), extra_pages: int = 0
    ) -> bool:
        """Says whether a slot and pages are there for a request, if `without` gave theirs back."""
        slots, pages = self.cache.slots, self.cache.pages
        if slots is not None and slots.available + len(without) < 1:
            return False
        reserved = self.reserved_pages - sum(r.reserved_pages for r in without)
        return pages is None or reserved + self.pages_needed(request) + extra_pages <= pages.total

    def acquire(self, request: Request) -> bool:
        """Gives a request a live slot and what the cache has of its prefix.

        Returns:
            False if the request must wait until others release something; it then owns nothing.
        """
        cache = self.cache
        if not self.has_room(request):
            return False
        hit = self.lookup(request)
        # A page to be copied counts for this request until the copy is made. Where even that is
        # too much, the page itself is taken, if it is nobody else's.
        copies = hit.partial is not None and self.has_room(request, extra_pages=1)
        if hit.partial is not None and not copies and cache.pages.owners(hit.partial):
            return False
        for page in hit.pages:
            cache.pages.hold(page)
        if hit.partial is not None:
            cache.pages.hold(hit.partial)
        if hit.slot is not None:
            cache.slots.hold(hit.slot)
            request.read_slot = hit.slot
        request.reserved_pages = self.pages_needed(request) + copies
        self.reserved_pages += request.reserved_pages
        request.pages = list(hit.pages)
        if cache.slots is not None:
            slot = cache.slots.take()
            if slot is None:  # the only slot to be had is the checkpoint itself
                slot = request.read_slot
                cache.take_over(slot)
            request.live_slots = [slot]
        if copies:
            request.page_copy = (hit.partial, cache.pages.take())
            request.pages.append(request.page_copy[1])
            cache.stats.page_copies += 1
        elif hit.partial is not None:
            cache.pages.withdraw_all(hit.partial)
            request.pages.append(hit.partial)
        request.num_computed = hit.length
        request.num_full_pages = len(hit.pages)
        request.num_noted = hit.length
        # The head's row below a checkpoint depends on the next token, so it is computed anew. Pages
        # that were found without one are those of this very continuation.
        request.num_head_computed = hit.length - (hit.slot is not None)
        request.branch = hit.branch
        request.publishes = True
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(hit.length, len(request.prompt_token_ids))
        cache.count(hit, request.num_tokens)
        return True

    def take_pages(self, request: Request, end: int) -> None:
        """Takes the pages that rows below `end` need; they are reserved, so there are enough."""
        if self.cache.pages is not None:
            while len(request.pages) * self.cache.page_size < end:
                request.pages.append(self.cache.pages.take())

    def take_candidate_slots(self, request: Request, count: int) -> int:
        """Takes slots for the states after `count` drafts; returns for how many there were any."""
        if self.cache.slots is None:
            return count
        while len(request.candidate_slots) < count:
            slot = self.cache.slots.take()
            if slot is None:
                break
            request.candidate_slots.append(slot)
        return len(request.candidate_slots)

    def keep_candidate(self, request: Request, before: int, kept: int) -> None:
        """Makes the state after the last kept row the request's own, by renaming.

        Slots of grid points that were passed become slots to publish; the others are released.

        Args:
            request: Its step ran; the live slot and `candidate_slots` hold the states after its
                rows.
            before: Tokens computed before the step.
            kept: Rows whose inputs were accepted, from 1.
        """
        if not request.candidate_slots:
            return
        slots = [*request.live_slots, *request.candidate_slots]
        request.candidate_slots = []
        request.live_slots = [slots[kept - 1]]
        request.read_slot = slots[kept - 1]
        for row, slot in enumerate(slots):
            if row < kept - 1 and (before + row + 1) % self.cache.block == 0:
                request.boundary_slots[before + row + 1] = slot
            elif row != kept - 1:
                self.cache.slots.release(slot)

    def take_boundary_slots(self, request: Request, end: int) -> None:
        """Takes a slot for each grid point inside a chunk, as far as there are any.

        The deepest comes first: a repetition of the prompt hits there. The chunk's last row needs
        none, since its live slot is promoted.
        """
        cache = self.cache
        if cache.mode != "all" or cache.slots is None or not request.publishes:
            return
        deepest = (end - 1) // cache.block * cache.block
        for boundary in range(deepest, request.num_computed, -cache.block):
            if cache.has_checkpoint(request.prefix, boundary):
                continue
            slot = cache.slots.take()
            if slot is None:
                cache.stats.skipped += 1
            else:
                request.boundary_slots[boundary] = slot

    def rows(self, request: Request, end: int) -> PlannedSequence:
        """Returns a request's rows up to `end`, and takes slots for the grid points among them.

        Args:
            request: Its pages reach to `end`, and its candidate slots as far as its drafts.
            end: Beyond its known tokens where drafts are verified.
        """
        begin, known = request.num_computed, request.num_tokens
        tokens = request.tokens(begin, min(end, known))
        writes = [-1] * (end - begin)
        if end > known:
            tokens = [*tokens, *request.drafts[: end - known]]
            if request.live_slots:
                writes = [*request.live_slots, *request.candidate_slots]
        else:
            if request.live_slots:
                writes[-1] = request.live_slots[0]
            self.take_boundary_slots(request, end)
            for boundary, slot in request.boundary_slots.items():
                writes[boundary - begin - 1] = slot
        scored = 0
        if request.num_scored is not None:
            last = min(end, len(request.prompt_token_ids) - 1)
            scored = max(0, last - max(begin, request.num_scored))
        return PlannedSequence(
            request.request_id,
            tuple(tokens),
            begin,
            request.read_slot,
            tuple(writes),
            tuple(request.pages[: -(-end // self.cache.page_size)]),
            num_outputs=max(0, end - known + 1),
            num_scored=scored,
        )

    def release_sources(self, request: Request) -> None:
        """Lets go of what an executed step read: its state is in the live slot, its page copied."""
        if request.live_slots:
            if request.read_slot >= 0 and request.read_slot not in request.live_slots:
                self.cache.slots.release(request.read_slot)
            request.read_slot = request.live_slots[0]
        if request.page_copy is not None:
            self.cache.pages.release(request.page_copy[0])
            request.page_copy = None
            request.reserved_pages -= 1
            self.reserved_pages -= 1

    def publish(self, request: Request, leaves: bool) -> None:
        """Publishes what is complete: full pages, and checkpoints by promotion of their slots.

        Args:
            request: Its tokens are accepted and its rows executed.
            leaves: The request stops running, so its live slot needs no replacement.
        """
        cache, computed = self.cache, request.num_computed
        if not cache.enabled or not request.publishes:
            self.release_boundary_slots(request)
            return
        filled = min(computed, request.num_head_computed) if cache.ahead else computed
        if cache.pages is not None:
            full = filled // cache.page_size
            for index in range(request.num_full_pages, full):
                cache.publish_page(request.prefix, index, request.pages[index])
            request.num_full_pages = max(full, request.num_full_pages)
        if cache.slots is None:
            return
        for boundary, slot in sorted(request.boundary_slots.items()):
            self._publish_state(request, boundary, slot)
        self.release_boundary_slots(request)
        if computed and computed % cache.block == 0 and request.read_slot in request.live_slots:
            self._promote(request, leaves)
        first = (request.num_noted // cache.block + 1) * cache.block
        end = min(computed, filled + cache.ahead)
        for boundary in range(first, end + 1, cache.block):
            cache.publish_boundary(request.prefix, boundary, request.pages)
        request.num_noted = max(end, request.num_noted)

    def release_step_slots(self, request: Request) -> None:
        """Releases the slots that a step was to write beside the live one."""
        for slot in request.candidate_slots:
            self.cache.slots.release(slot)
        request.candidate_slots = []
        self.release_boundary_slots(request)

    def release_boundary_slots(self, request: Request) -> None:
        """Releases the slots of grid points that a step was to write, or has written."""
        for slot in request.boundary_slots.values():
            self.cache.slots.release(slot)
        request.boundary_slots = {}

    def release(self, request: Request) -> None:
        """Releases everything; the last pages first, so that beginnings stay longest."""
        self.release_step_slots(request)
        held = list(request.live_slots)
        if request.read_slot >= 0 and request.read_slot not in held:
            held.append(request.read_slot)
        for slot in held:
            self.cache.slots.release(slot)
        if request.page_copy is not None:
            self.cache.pages.release(request.page_copy[0])
        for page in reversed(request.pages):
            self.cache.pages.release(page)
        request.live_slots, request.read_slot = [], -1
        request.pages, request.page_copy = [], None
        self.reserved_pages -= request.reserved_pages
        request.reserved_pages = request.num_computed = request.num_full_pages = 0
        request.num_noted = request.num_head_computed = 0
        request.drafts = []

    def check(self, requests: Iterable[Request], in_flight: bool) -> None:
        """Raises AssertionError unless the requests own exactly what the pools say."""
        slots, pages, written = Counter(), Counter(), Counter()
        reserved = 0
        for r in requests:
            step_slots = (*r.boundary_slots.values(), *r.candidate_slots)
            assert in_flight or not step_slots, f"{r.request_id}: slots of no step"
            own = (*r.live_slots, *step_slots)
            slots.update(own)
            if r.read_slot >= 0 and r.read_slot not in r.live_slots:
                slots[r.read_slot] += 1
            pages.update(r.pages)
            if r.page_copy is not None:
                pages[r.page_copy[0]] += 1
            reserved += r.reserved_pages
            if self.cache.pages is not None:
                ahead = self.cache.ahead
                filled = min(r.num_computed, r.num_head_computed) if ahead else r.num_computed
                written.update(r.pages[filled // self.cache.page_size :])
                assert len(r.pages) + (r.page_copy is not None) <= r.reserved_pages
            if self.cache.slots is not None:
                assert (r.read_slot >= 0) == (r.num_computed > 0), f"{r.request_id}: no state"
                for slot in own:
                    assert not self.cache.slots.is_cached(slot), f"slot {slot} is live and cached"
                    assert slots[slot] == 1, f"slot {slot} is live twice"
        assert all(count == 1 for count in written.values()), "a page has two writers"
        assert self.reserved_pages == reserved
        if self.cache.pages is not None:
            assert reserved <= self.cache.pages.total, "pages are over-committed"
        self.cache.check(slots, pages)

    def _promote(self, request: Request, leaves: bool) -> None:
        """Turns the live slot into the checkpoint of all computed tokens; another takes its place.

        Without another the live slot stays live and nothing is published.
        """
        cache, slot = self.cache, request.live_slots[0]
        if cache.has_checkpoint(request.prefix, request.num_computed):
            return
        if leaves:
            request.live_slots = []
        else:
            replacement = cache.slots.take()
            if replacement is None:
                cache.stats.skipped += 1
                return
            request.live_slots[0] = replacement
        # The promoted slot stays held as the one to read.
        self._publish_state(request, request.num_computed, slot)

    def _publish_state(self, request: Request, boundary: int, slot: int) -> None:
        if self.cache.publish_state(request.prefix, boundary, slot) and self.on_publish is not None:
            self.on_publish(request, boundary, slot)
