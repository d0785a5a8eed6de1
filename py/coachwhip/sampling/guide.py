"""Follows a grammar through one request's text, and says which tokens may come next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from llguidance import LLMatcher

WORD_BITS = 32
"""Tokens per word of a mask."""
_FULL = "too many states"
"""In the reason of a matcher whose lexer, with all texts so far, has as many as it may."""
NOTHING_LEFT = (
    "no token may come next: what the grammar allows here is excluded by bad_words, min_tokens or "
    "logits that are -inf"
)


def mask_words(vocab: int) -> int:
    """Returns the words of a mask: one bit per token."""
    return -(-vocab // WORD_BITS)


class Guide:
    """Where one text is in its grammar.

    Masks belong to a text and its drafts alone, so they are the same whenever they are computed:
    with drafts or without, before or after a preemption. Where the next characters are the only
    ones that there can be, a mask has the one token that usually begins them, as the tokenizer
    would split them.

    Args:
        matcher: The grammar, at the beginning; the guide's own.
        vocab: The model's vocabulary size.
        known: Tokens of the matcher, at least `vocab`.
        ends: Tokens that end the text, allowed wherever it may end.
        never: End tokens that the matcher would allow there, and the request does not.
        renew: Returns a matcher at the beginning that shares nothing with those before; None:
            a grammar that other texts made too large ends this one too.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        vocab: int,
        known: int,
        ends: Collection[int],
        never: Collection[int] = (),
        renew: Callable[[], LLMatcher] | None = None,
    ) -> None:
        self._matcher, self._known = matcher, known
        self._words, self._tail = mask_words(vocab), vocab % WORD_BITS
        self._ends, self._never = frozenset(ends), tuple(never)
        self._masks: dict[tuple[int, ...], np.ndarray | None] = {}
        self._problem: str | None = None
        self._renew, self._renewed = renew, False
        self._text: list[int] = []

    @property
    def ended(self) -> bool:
        """Whether the text is complete: no longer one is in the grammar."""
        matcher = self._matcher
        return self._problem is None and matcher.is_stopped() and not matcher.is_error()

    def refusal(self, token: int) -> str | None:
        """Returns why a token cannot come next; None if it can."""
        takes = self.allowed((token,))
        if not takes:
            # A matcher that is full refuses all; that it is shows when it makes a mask.
            self._masks.clear()
            self.mask()
            takes = self.allowed((token,))
        return self._problem or (None if takes else NOTHING_LEFT)

    def append(self, token: int) -> None:
        """Goes on by a token of the text, one that is not refused."""
        self._masks.clear()
        if token not in self._ends or not self._matcher.is_accepting():
            self._matcher.consume_token(token)
            self._text.append(token)

    def allowed(self, drafts: Sequence[int] = ()) -> int:
        """Returns how many of the drafts after the text may come before it is complete."""
        while self._problem is None:
            matcher = self._matcher
            taken = matcher.try_consume_tokens(list(drafts))
            ends = taken < len(drafts) and drafts[taken] in self._ends and matcher.is_accepting()
            if self._back(taken):
                return taken + ends
        return 0

    def mask(self, drafts: Sequence[int] = ()) -> np.ndarray | None:
        """Returns which tokens may come after the text and these drafts.

        Returns:
            [ceil(vocab / 32)] i32, one bit per token, not to be changed; None where it does not
            matter, since a draft is not in the grammar or the text is complete before the last.
        """
        key = tuple(drafts)
        while key not in self._masks and self._problem is None:
            mask = self._computed(key)
            if not self._renewed:
                self._masks[key] = mask
        return self._masks.get(key)

    def _computed(self, drafts: tuple[int, ...]) -> np.ndarray | None:
        matcher = self._matcher
        if matcher.is_stopped() and not matcher.is_error():
            return None
        taken, mask = matcher.try_consume_tokens(list(drafts)), None
        if not matcher.is_stopped():
            mask = np.empty(mask_words(self._known), np.int32)
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        accepting = matcher.is_accepting()
        if not self._back(taken) or mask is None or taken < len(drafts):
            return None
        bits = mask.view(np.uint32)
        if accepting:
            for token in self._ends:
                bits[token // WORD_BITS] |= np.uint32(1 << token % WORD_BITS)
            for token in self._never:
                bits[token // WORD_BITS] &= ~np.uint32(1 << token % WORD_BITS)
        mask, bits = mask[: self._words], bits[: self._words]
        if self._tail:
            bits[-1] &= np.uint32((1 << self._tail) - 1)
        return mask

    def _back(self, taken: int) -> bool:
        """Takes the drafts back that the matcher went through.

        Returns:
            False where it gave up: there is a problem, or another one has taken its place.
        """
        if not self._matcher.is_error():
            self._renewed = False
            if taken:
                self._matcher.rollback(taken)
            return True
        reason = " ".join(self._matcher.get_error().split())
        if self._renew is not None and not self._renewed and _FULL in reason:
            self._renewed = True
            self._matcher = self._renew()
            self._matcher.consume_tokens(self._text)
        else:
            self._problem = f"the grammar is too complex to be followed here: {reason}"
        return False
