"""Drafts of an object that the user passes."""

from __future__ import annotations

from collections.abc import Callable

from .drafter import Drafter, DraftStep


class CustomDrafter(Drafter):
    """Asks an object for drafts, and takes of its answer what can be used.

    An object that raises, or proposes what is no token, costs drafts and nothing else; the first
    time is warned of.

    Args:
        drafter: Has `propose(request_id: str, token_ids: list[int], k: int) -> list[int]`.
        vocab: Size of the vocabulary.
        on_warning: Gets the warning.
    """

    def __init__(self, drafter, vocab: int, on_warning: Callable[[str], None] | None) -> None:
        self._drafter, self._vocab, self._on_warning = drafter, vocab, on_warning

    def propose(self, step: DraftStep) -> dict[str, list[int]]:
        found = {}
        for request_id, count in step.wanted.items():
            request = step.requests[request_id]
            text = request.tokens(0, request.num_tokens)
            try:
                drafts = list(self._drafter.propose(request_id, text, count))
            except Exception as error:  # the object is the user's
                self._warn(f"raised {type(error).__name__}: {error}")
                continue
            found[request_id] = self._usable(request_id, drafts, count)
        return found

    def forget(self, request_id: str) -> None:
        """Tells the object that a request has ended, if it wants to know."""
        forget = getattr(self._drafter, "forget", None)
        if forget is None:
            return
        try:
            forget(request_id)
        except Exception as error:
            self._warn(f"raised {type(error).__name__} in forget: {error}")

    def _usable(self, request_id: str, drafts: list, count: int) -> list[int]:
        if len(drafts) > count:
            self._warn(f"proposed {len(drafts)} tokens for {request_id}, {count} were asked for")
        usable = []
        for token in drafts[:count]:
            try:
                value = int(token)
                known = value == token and 0 <= value < self._vocab
            except (TypeError, ValueError, OverflowError):
                known = False
            if not known:
                self._warn(f"proposed {token!r} for {request_id}, which is no token id")
                break
            usable.append(value)
        return usable

    def _warn(self, what: str) -> None:
        if self._on_warning is not None:
            self._on_warning(
                f"the drafter {what}; such drafts are not used (said once, the text is right)"
            )
            self._on_warning = None
