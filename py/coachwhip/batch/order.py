"""In which order requests start, so that what they share is computed once."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _Entry:
    salt: str
    tokens: bytes
    """Tokens as big-endian 32-bit numbers, whose order is that of the lists."""
    place: int
    """Where the request is among those that were given."""

    def shared(self, other: _Entry) -> int:
        """Returns how many tokens of cached prefix the two could share."""
        return _common(self.tokens, other.tokens) if self.salt == other.salt else 0


class PrefixOrder:
    """Requests sorted by prompt, each held back while another computes what it could reuse.

    Two requests that start together compute a shared prefix twice, since it becomes findable after
    the step that wrote it. So of those that share more than is computed already, one starts, and
    the others wait for its first token. Results do not depend on the order, only the work does.

    Args:
        prompts: Salt and token ids of each request.
        grain: Tokens between prefixes that can be found; 0 keeps the order as it is.
    """

    def __init__(self, prompts: Sequence[tuple[str, Sequence[int]]], grain: int) -> None:
        self._grain = grain
        self._entries = [
            _Entry(salt, _packed(tokens), place) for place, (salt, tokens) in enumerate(prompts)
        ]
        if grain:
            self._entries.sort(key=lambda entry: (entry.salt, entry.tokens))
        pairs = zip(self._entries, self._entries[1:], strict=False)
        self._neighbours = [first.shared(second) if grain else 0 for first, second in pairs]
        self._index = {entry.place: index for index, entry in enumerate(self._entries)}
        # A ring of those that have not started; the index past the last is its anchor.
        count = len(self._entries)
        self._after = [*range(1, count + 1), 0]
        self._before = [count, *range(count)]
        self._cold: list[int] = []  # started, prompt not computed yet; sorted, as the next
        self._warm: list[int] = []  # prompt computed
        self._stuck = False

    def __bool__(self) -> bool:
        """Whether some have not started."""
        return self._after[-1] != len(self._entries)

    def next(self) -> int | None:
        """Returns the place of the request to start now; None when there is none, or all wait."""
        anchor = len(self._entries)
        index = anchor if self._stuck else self._after[anchor]
        while index != anchor:
            need = self._need(index)
            if need is None:
                self._start(index)
                return self._entries[index].place
            # Whatever shares as much with this one waits with it.
            passed, index = index, self._after[index]
            while index != anchor and self._shared(passed, index) >= need:
                passed, index = index, self._after[index]
        self._stuck = True
        return None

    def computed(self, place: int) -> None:
        """Says that the prompt of a started request is computed, or that it has ended."""
        index = self._index[place]
        at = bisect_left(self._cold, index)
        if at < len(self._cold) and self._cold[at] == index:
            del self._cold[at]
            insort(self._warm, index)
            self._stuck = False

    def _need(self, index: int) -> int | None:
        """Returns how much a request must share with this one to wait as well; None: start it."""
        if not self._grain or not self._cold:
            return None
        soon, have = self._most_shared(index, self._cold), self._most_shared(index, self._warm)
        return soon if soon // self._grain > have // self._grain else None

    def _most_shared(self, index: int, others: list[int]) -> int:
        """Returns the most that an entry shares with one of others: with a neighbour, as all are
        sorted."""
        at = bisect_left(others, index)
        near = others[max(0, at - 1) : at + 1]
        return max((self._shared(*sorted((index, one))) for one in near), default=0)

    def _shared(self, first: int, second: int) -> int:
        if second == first + 1:
            return self._neighbours[first]
        return self._entries[first].shared(self._entries[second])

    def _start(self, index: int) -> None:
        before, after = self._before[index], self._after[index]
        self._after[before], self._before[after] = after, before
        insort(self._cold, index)


def _packed(tokens: Sequence[int]) -> bytes:
    packed = array("I", tokens)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def _common(first: bytes, second: bytes) -> int:
    """Returns how many tokens two prefixes have in common."""
    low, high = 0, min(len(first), len(second)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        if first[: 4 * middle] == second[: 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return low
