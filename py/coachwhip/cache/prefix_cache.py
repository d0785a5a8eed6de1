"""Finds and keeps the states and pages of prefixes that were computed before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .block_chain import BlockChain
from .history import History
from .pool import Pool
from .prefix_tree import NEAREST, SHOWN_TOKENS, PrefixTree
from .stats import CacheStats

MODES = ("none", "align", "all")


@dataclass(frozen=True)
class Prefix:
    """The names of one sequence's prefixes: on the checkpoint grid, and page by page.

    Attributes:
        states: On the grid; None without Mamba layers.
        pages: Page by page; None without attention layers.
        private: Whether only some requests may share them: their tokens are shown to nobody.
    """

    states: BlockChain | None
    pages: BlockChain | None
    private: bool = False


@dataclass(frozen=True)
class Hit:
    """What a lookup found.

    Attributes:
        length: Tokens that need not be computed.
        slot: The checkpoint of `length` tokens; None without Mamba layers or without a hit.
        pages: The full pages below `length`, to be shared.
        partial: The page with the last rows below `length`, to be copied: those after the last full
            page, or with a draft head always the page of the last row.
        branch: A grid point beyond the hit up to which the tokens are those of an earlier sequence,
            0 if there is none.
        miss: Why `length` is 0, one of `MISS_REASONS`; None on a hit.
        key: The checkpoint's name; None as for `slot`.
    """

    length: int = 0
    slot: int | None = None
    pages: tuple[int, ...] = ()
    partial: int | None = None
    branch: int = 0
    miss: str | None = None
    key: bytes | None = None


class PrefixCache:
    """The slots and pages of an engine, with the index of those that stand for a prefix.

    A checkpoint is a slot whose key is the hash of its prefix. A full page has the hash of the
    prefix that ends with it as key; the page that holds the last rows before a checkpoint between
    two page ends has a key for that too, and so stays findable beside the checkpoint. Each pool
    evicts its own least recently used entries; neither pool ever evicts the other's.

    A multi-token-prediction head keeps keys and values in the same pages, and its row at position
    `i` depends on the token at `i + 1`. So with a head a full page's name covers one token beyond
    the page, and a hit at a checkpoint copies the page of the last row below it, even a full one:
    that row belongs to the continuation of another request and is computed anew from the carry.

    Args:
        slots: State slots; None for a model without Mamba layers.
        pages: Pages; None for a model without attention layers.
        page_size: Tokens per page.
        mode: `none`, `align` or `all`.
        block: `mamba_block_size`, the grid of checkpoints in tokens.
        head: Whether pages hold rows of a multi-token-prediction head.
    """

    def __init__(
        self,
        slots: Pool | None,
        pages: Pool | None,
        page_size: int,
        mode: str,
        block: int,
        head: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}, it must be one of {MODES}")
        self.slots = slots
        self.pages = pages
        self.page_size = page_size
        self.mode = mode
        self.block = block
        self.ahead = int(head and pages is not None)
        """Tokens beyond a row on which what a page holds for it depends."""
        self.history = History()
        self.tree = PrefixTree()
        self.stats = CacheStats()
        if slots is not None:
            slots.on_evict = self._slot_evicted
        if pages is not None:
            pages.on_evict = self._page_evicted

    @property
    def enabled(self) -> bool:
        return self.mode != "none"

    def prefix(self, extra: Sequence[str], read: Callable[[int, int], Sequence[int]]) -> Prefix:
        """Returns the names of a sequence's prefixes.

        Args:
            extra: Keys that must be equal for a hit, beside the tokens.
            read: Returns tokens [begin, end) of the sequence.
        """
        return Prefix(
            None if self.slots is None else BlockChain("state", self.block, extra, read),
            None
            if self.pages is None
            else BlockChain("page", self.page_size, extra, read, self.ahead),
            private=bool(extra),
        )

    def lookup(self, prefix: Prefix, num_tokens: int) -> Hit:
        """Finds the longest prefix of at most `num_tokens - 1` tokens that can be restored.

        That is the deepest checkpoint whose pages are all present; without Mamba layers the pages
        alone decide. Nothing changes: what is found must be held to stay.
        """
        if not self.enabled:
            return Hit(miss="disabled")
        limit = num_tokens - 1
        if limit < (self.page_size if self.slots is None else self.block):
            return Hit(miss="too_short")
        full = self._full_pages(prefix, num_tokens)
        if self.slots is None:
            count = min(len(full), limit // self.page_size)
            if not count:
                return Hit(miss="no_page")
            return Hit(count * self.page_size, pages=tuple(full[:count]))
        branch, reason = 0, "no_state"
        for length in range(limit // self.block * self.block, 0, -self.block):
            key = prefix.states.at(length)
            slot = self.slots.find(key)
            if slot is not None:
                found = self._with_pages(length, slot, key, full, branch)
                if found is not None:
                    return found
                reason = "no_page"
            elif reason == "no_state" and self.history.lost(key):
                reason = "evicted"
            if not branch and (slot is not None or self.history.knows(key)):
                branch = length
        return Hit(branch=branch, miss=reason)

    def has_checkpoint(self, prefix: Prefix, length: int) -> bool:
        """Says whether the first `length` tokens, on the grid, have a checkpoint."""
        return self.slots.find(prefix.states.at(length)) is not None

    def publish_state(self, prefix: Prefix, length: int, slot: int) -> bool:
        """Makes an owned slot the checkpoint of `length` tokens; False if there is one already."""
        key = prefix.states.at(length)
        if not self.slots.publish(slot, key):
            return False
        self.stats.published += 1
        before = length
        for _ in range(min(NEAREST, length // self.block)):
            before -= self.block
            if before == 0 or prefix.states.at(before) in self.tree:
                break
        parent = prefix.states.at(before) if before else None
        end = before if prefix.private else min(length, before + SHOWN_TOKENS)
        self.tree.add(key, parent, length, prefix.states.tokens(before, end))
        return True

    def publish_page(self, prefix: Prefix, index: int, page: int) -> None:
        """Makes a sequence's full page `index` findable, unless an equal one is.

        With a head the token after the page must be known.
        """
        self.pages.publish(page, prefix.pages.at((index + 1) * self.page_size))

    def publish_boundary(self, prefix: Prefix, length: int, pages: Sequence[int]) -> None:
        """Notes a computed grid point, and which page has the rows just below it.

        Args:
            prefix: The sequence.
            length: The grid point.
            pages: The sequence's pages.
        """
        key = prefix.states.at(length)
        if self.mode == "align":
            self.history.computed(key)
        last = (length - self.ahead) // self.page_size  # the page of the last row, if it is copied
        copied = self.ahead or length % self.page_size
        if self.pages is not None and copied and self.slots.find(key) is not None:
            self.pages.publish(pages[last], _partial(key))

    def take_over(self, slot: int) -> None:
        """Turns a checkpoint into a live slot of its only owner, for want of another slot."""
        for key in self.slots.withdraw_all(slot):
            self._checkpoint_lost(key)

    def forget(self, prefix: Prefix, num_tokens: int) -> None:
        """Makes the checkpoints of a sequence's first tokens, and its full pages, unfindable."""
        if self.slots is not None:
            for length in range(self.block, num_tokens + 1, self.block):
                key = prefix.states.at(length)
                self.slots.withdraw(key)
                self.tree.remove(key)
                if self.pages is not None:
                    self.pages.withdraw(_partial(key))
        if self.pages is not None:
            for end in range(self.page_size, num_tokens + 1 - self.ahead, self.page_size):
                self.pages.withdraw(prefix.pages.at(end))

    def count(self, hit: Hit, num_tokens: int) -> None:
        """Counts a lookup whose request was admitted."""
        self.stats.queries += num_tokens
        self.stats.hits += hit.length
        if hit.miss is None:
            self.stats.restored += 1
            if hit.key is not None:
                self.tree.hit(hit.key)
        else:
            self.stats.misses[hit.miss] += 1

    def reset(self) -> None:
        """Makes every checkpoint and page unfindable; what requests hold stays theirs."""
        for pool in (self.slots, self.pages):
            if pool is not None:
                pool.clear()
        self.history.clear()
        self.tree.clear()

    def check(self, slot_owners: dict[int, int], page_owners: dict[int, int]) -> None:
        """Raises AssertionError unless both pools are consistent and owned as the caller says."""
        if self.slots is not None:
            self.slots.check(slot_owners)
            assert len(self.tree) == self.slots.cached, "the prefix tree has other checkpoints"
            for node in self.tree:
                assert self.slots.find(node) is not None, "the prefix tree has a lost checkpoint"
        if self.pages is not None:
            self.pages.check(page_owners)

    def _full_pages(self, prefix: Prefix, num_tokens: int) -> list[int]:
        found: list[int] = []
        if self.pages is None:
            return found
        for end in range(self.page_size, num_tokens + 1 - self.ahead, self.page_size):
            page = self.pages.find(prefix.pages.at(end))
            if page is None:
                break
            found.append(page)
        return found

    def _with_pages(
        self, length: int, slot: int, key: bytes, full: list[int], branch: int
    ) -> Hit | None:
        """Returns the hit on a checkpoint, or None if a page of it is missing."""
        if self.pages is None:
            return Hit(length, slot, branch=branch, key=key)
        count, rest = divmod(length - self.ahead, self.page_size)
        if len(full) < count:
            return None
        partial = None
        if rest or self.ahead:
            partial = self.pages.find(_partial(key))
            if partial is None and len(full) > count:
                partial = full[count]  # a full page of this very sequence has these rows as well
            if partial is None:
                return None
        return Hit(length, slot, tuple(full[:count]), partial, branch, key=key)

    def _slot_evicted(self, slot: int, keys: frozenset[bytes]) -> None:
        for key in keys:
            self._checkpoint_lost(key)

    def _checkpoint_lost(self, key: bytes) -> None:
        self.stats.evicted += 1
        self.tree.remove(key)
        self.history.evicted(key)
        if self.pages is not None:
            self.pages.withdraw(_partial(key))

    def _page_evicted(self, page: int, keys: frozenset[bytes]) -> None:
        self.stats.pages_evicted += 1


def _partial(key: bytes) -> bytes:
    """Returns the key of the page that has the rows just below a checkpoint."""
    return b"rows below " + key
