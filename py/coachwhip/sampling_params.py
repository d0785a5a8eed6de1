"""What a user asks of one generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import RequestError

MOST_LOGPROBS = 20
"""Largest `logprobs`, OpenAI's limit."""
MOST_STOPS = 4
"""Most stop strings of a request, OpenAI's limit."""


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one generation, under vLLM's names.

    Raises:
        RequestError: A value is out of its range; the message names the field and the value.
    """

    max_tokens: int | None = 16
    """Most tokens to generate; None generates up to the model's length."""
    temperature: float = 0.0
    """0 takes the most likely token; the engine samples greedily only."""
    stop: Sequence[str] | str = field(default_factory=tuple)
    """Strings that end the text; they are not part of it."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the text, beside the model's own end tokens."""
    ignore_eos: bool = False
    """Go on past the model's end tokens."""
    logprobs: int | None = None
    """Return the log probability of each token and of this many most likely ones."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and not _is_int(self.max_tokens, at_least=1):
            raise RequestError("max_tokens", self.max_tokens, "give a whole number from 1, or None")
        if not isinstance(self.temperature, (int, float)) or self.temperature != 0:
            raise RequestError(
                "temperature",
                self.temperature,
                "this version takes the most likely token only; give 0",
            )
        stops = (self.stop,) if isinstance(self.stop, str) else _as_tuple(self.stop)
        if (
            stops is None
            or len(stops) > MOST_STOPS
            or not all(isinstance(s, str) and s for s in stops)
        ):
            raise RequestError("stop", self.stop, f"give up to {MOST_STOPS} non-empty strings")
        object.__setattr__(self, "stop", stops)
        ids = _as_tuple(self.stop_token_ids)
        if ids is None or not all(_is_int(i, at_least=0) for i in ids):
            raise RequestError("stop_token_ids", self.stop_token_ids, "give token ids from 0")
        object.__setattr__(self, "stop_token_ids", ids)
        if self.logprobs is not None and not (
            _is_int(self.logprobs, at_least=0) and self.logprobs <= MOST_LOGPROBS
        ):
            raise RequestError(
                "logprobs", self.logprobs, f"give a whole number from 0 to {MOST_LOGPROBS}"
            )


def _as_tuple(value: object) -> tuple | None:
    """Returns a sequence as a tuple, nothing as an empty one, and None for anything else."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else None


def _is_int(value: object, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
