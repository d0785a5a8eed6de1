"""What a user asks of one generation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import RequestError
from ..real_number import is_real
from .grammar import Grammar

MOST_LOGPROBS = 20
"""Largest `logprobs` and `prompt_logprobs`, OpenAI's limit."""
MOST_STOPS = 4
"""Most stop strings of a request, OpenAI's limit."""
MOST_BIAS = 100.0
"""Largest magnitude of a `logit_bias`, OpenAI's limit."""
MOST_PENALTY = 2.0
"""Largest magnitude of presence and frequency penalties, OpenAI's limit."""
DRAFTS_KEY = "num_speculative_tokens"
"""The only key of a request's `speculative_config`."""


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one generation, under vLLM's names.

    The logits are changed in this order: logit bias, penalties, bad words, min_tokens, grammar,
    temperature, top-k, top-p, min-p. The token is the largest of what remains plus Gumbel noise,
    which depends on the seed, the position and the token alone: the same seed gives the same text,
    alone or in a batch, with any drafts or none.

    Raises:
        RequestError: A value is out of its range; the message names the field and the value.
    """

    max_tokens: int | None = 16
    """Most tokens to generate; None generates up to the model's length."""
    temperature: float = 0.0
    """0 takes the most likely token; 1 samples from the model's distribution."""
    top_p: float = 1.0
    """Sample among the fewest tokens that have this much probability together; 1 is all."""
    top_k: int = 0
    """Sample among this many most likely tokens; 0 and -1 are all."""
    min_p: float = 0.0
    """Sample among tokens at least this likely, relative to the most likely one; 0 is all."""
    seed: int | None = None
    """Decides the text together with the prompt; None draws one."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token in the generated text."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit as often as it is in the generated text."""
    repetition_penalty: float = 1.0
    """Divides the positive logits, and multiplies the negative ones, of tokens in prompt and
    text."""
    logit_bias: Mapping[int, float] | None = None
    """Token id -> what is added to its logit, from -100 to 100."""
    bad_words: Sequence[str] = ()
    """Words that are not generated: the last token of each is forbidden after the others."""
    min_tokens: int = 0
    """End tokens and stop strings count only after this many tokens."""
    stop: Sequence[str] | str = field(default_factory=tuple)
    """Strings that end the text; they are not part of it."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end the text, beside the model's own end tokens."""
    ignore_eos: bool = False
    """Go on past the model's end tokens."""
    logprobs: int | None = None
    """Return the log probability of each token and of this many most likely ones, of the model's
    own logits."""
    prompt_logprobs: int | None = None
    """Return the log probability of each prompt token given those before it, and of this many most
    likely ones. Nothing of the prompt is then taken from the prefix cache. With it, `max_tokens`
    may be 0."""
    grammar: Grammar | None = None
    """The only texts that may be generated, beside `max_tokens` and stop strings that cut them
    short. The model's end tokens are allowed only where the text may end, and a text that cannot go
    on ends with finish reason "stop", even before `min_tokens`."""
    speculative_config: Mapping[str, int] | None = None
    """`{"num_speculative_tokens": n}` lowers the number of drafts for this request, 0 is none."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            least = int(self.prompt_logprobs is None)
            self._whole("max_tokens", least, also=", or None")
        self._real("temperature", 0.0, math.inf)
        self._real("top_p", 0.0, 1.0, open_below=True)
        self._whole("top_k", -1, 2**31 - 1)
        object.__setattr__(self, "top_k", max(0, self.top_k))
        self._real("min_p", 0.0, 1.0)
        if self.seed is not None:
            self._whole("seed", -(2**63), 2**64 - 1, also=", or None")
        for name in ("presence_penalty", "frequency_penalty"):
            self._real(name, -MOST_PENALTY, MOST_PENALTY)
        self._real("repetition_penalty", 0.0, math.inf, open_below=True)
        self._check_bias()
        self._texts("bad_words")
        self._whole("min_tokens", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                "min_tokens", self.min_tokens, f"give at most max_tokens, {self.max_tokens}"
            )
        self._texts("stop", MOST_STOPS)
        ids = _as_tuple(self.stop_token_ids)
        if ids is None or not all(_is_int(i, 0) for i in ids):
            raise RequestError("stop_token_ids", self.stop_token_ids, "give token ids from 0")
        object.__setattr__(self, "stop_token_ids", ids)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._whole(name, 0, MOST_LOGPROBS)
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise RequestError("grammar", self.grammar, "give a Grammar")
        self._check_drafts()

    @property
    def most_drafts(self) -> int | None:
        """The request's limit on drafts; None is the engine's."""
        return None if self.speculative_config is None else self.speculative_config[DRAFTS_KEY]

    @property
    def penalizes(self) -> bool:
        """Whether logits depend on the tokens of prompt and text."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )

    def _check_bias(self) -> None:
        bias = {} if self.logit_bias is None else self.logit_bias
        hint = f"give {{token id: number from -{MOST_BIAS:g} to {MOST_BIAS:g}}}"
        if not isinstance(bias, Mapping):
            raise RequestError("logit_bias", bias, hint)
        found = {}
        for token, value in bias.items():
            if isinstance(token, str) and token.isdecimal():
                token = int(token)  # JSON has no other keys
            if not _is_int(token, 0) or not is_real(value) or not abs(value) <= MOST_BIAS:
                raise RequestError("logit_bias", {token: value}, hint)
            found[token] = float(value)
        object.__setattr__(self, "logit_bias", found or None)

    def _check_drafts(self) -> None:
        config = self.speculative_config
        if config is None:
            return
        if not isinstance(config, Mapping) or set(config) != {DRAFTS_KEY}:
            raise RequestError(
                "speculative_config", config, f'a request may give {{"{DRAFTS_KEY}": n}}'
            )
        if not _is_int(config[DRAFTS_KEY], 0):
            raise RequestError(
                f"speculative_config.{DRAFTS_KEY}", config[DRAFTS_KEY], "give a whole number from 0"
            )

    def _whole(self, name: str, low: int, high: int | None = None, also: str = "") -> None:
        value = getattr(self, name)
        if not _is_int(value, low) or (high is not None and value > high):
            upper = "" if high is None else f" to {high}"
            raise RequestError(name, value, f"give a whole number from {low}{upper}{also}")

    def _real(self, name: str, low: float, high: float, open_below: bool = False) -> None:
        value = getattr(self, name)
        inside = is_real(value) and low <= value <= high and not (open_below and value == low)
        if not inside:
            first = f"above {low:g}" if open_below else f"from {low:g}"
            upper = "" if high == math.inf else f" to {high:g}"
            raise RequestError(name, value, f"give a number {first}{upper}")

    def _texts(self, name: str, most: int | None = None) -> None:
        value = getattr(self, name)
        texts = (value,) if isinstance(value, str) else _as_tuple(value)
        if (
            texts is None
            or (most is not None and len(texts) > most)
            or not all(isinstance(s, str) and s for s in texts)
        ):
            count = "" if most is None else f"up to {most} "
            raise RequestError(name, value, f"give {count}non-empty strings")
        object.__setattr__(self, name, texts)


def _as_tuple(value: object) -> tuple | None:
    """Returns a sequence as a tuple, nothing as an empty one, and None for anything else."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else None


def _is_int(value: object, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
