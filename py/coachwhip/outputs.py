"""What a user gets back, under vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CompletionOutput:
    """One generated text.

    `finish_reason` is "stop" (an end token or stop string), "length" (a limit), "abort", "error",
    or None while the request runs. `logprobs` holds, for each token, token id -> natural log
    probability of the generated token and of the most likely ones; None when not asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, float]] | None = None


@dataclass
class RequestOutput:
    """A request and its generated texts.

    `num_cached_tokens` are the prompt tokens whose state was found in the prefix cache,
    `num_drafted_tokens` and `num_accepted_tokens` count speculation. `metrics` are seconds:
    `queued`, `time_to_first_token`, `decode`, `total`. `error` says what went wrong with a request
    that ended with "error". `prompt_logprobs` holds for each prompt token, given those before it,
    what `logprobs` holds for each generated one, and None for the first; None when not asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None
