"""When a text ends: limits, end tokens, stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .sampling.params import SamplingParams


class StopChecker:
    """The end conditions of one request, checked after each token.

    Args:
        params: The request's parameters.
        eos_token_ids: The model's end tokens.
        max_tokens: Most tokens to generate.
        complete: Says whether the text is complete for another reason.
    """

    def __init__(
        self,
        params: SamplingParams,
        eos_token_ids: Sequence[int],
        max_tokens: int,
        complete: Callable[[], bool] = lambda: False,
    ) -> None:
        self._complete = complete
        self._eos = frozenset(() if params.ignore_eos else eos_token_ids)
        self._stop_ids = frozenset(params.stop_token_ids)
        self._stops = tuple(params.stop)
        self._max_tokens, self._min_tokens = max_tokens, params.min_tokens
        self._searched = 0  # characters in which no stop string ends that counts

    @property
    def reads_text(self) -> bool:
        """Whether the text decides as well: there are stop strings."""
        return bool(self._stops)

    def after_token(self, token: int, count: int) -> tuple[str, int | None] | None:
        """Returns (finish reason, stop reason) when the text ends with this token, else None.

        Args:
            token: The token just generated.
            count: Generated tokens, this one included.
        """
        if count >= self._min_tokens:
            if token in self._stop_ids:
                return "stop", token
            if token in self._eos:
                return "stop", None
        if self._complete():
            return "stop", None
        if count >= self._max_tokens:
            return "length", None
        return None

    def cut(self, text: str, count: int) -> tuple[str, str | None]:
        """Returns the text before the first stop string in it, and that string (None: no stop).

        Args:
            text: The text so far.
            count: Its tokens.
        """
        if count >= self._min_tokens:
            # Those that ended before `min_tokens` do not count, so each has its own beginning.
            found = [(text.find(s, max(0, self._searched + 1 - len(s))), s) for s in self._stops]
            hits = [(at, s) for at, s in found if at >= 0]
            if hits:
                at, stop = min(hits)
                return text[:at], stop
        self._searched = len(text)
        return text, None
