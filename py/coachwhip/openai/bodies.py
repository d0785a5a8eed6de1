"""Bodies of `/v1/completions` and `/v1/chat/completions`.

What a value may be beyond its kind is checked where it is used: `SamplingParams` knows the ranges.
A field that is null is a field that is not there.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from .fields import Bias, Body, Count, Number, Prompt, Texts, wrong, wrong_field
from .messages import Message
from .response_format import ResponseFormat
from .tools import NamedTool, Tool, check_tool_choice

MOST_CHOICES = 128
"""Largest `n`, OpenAI's limit."""


class StreamOptions(Body):
    """What a stream has beside its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(Body):
    """What the two URLs have in common."""

    model: str | None = None
    n: Count = None
    seed: Count = None
    max_tokens: Count = None
    min_tokens: Count = None
    temperature: Number = None
    top_p: Number = None
    top_k: Count = None
    min_p: Number = None
    presence_penalty: Number = None
    frequency_penalty: Number = None
    repetition_penalty: Number = None
    logit_bias: Bias = None
    bad_words: Texts = None
    stop: Texts = None
    stop_token_ids: list[Count] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    cache_salt: str | None = None
    priority: Count = None
    speculative_config: dict[str, Any] | None = None
    timeout: Number = None
    """Most seconds until the response is complete; the server has a limit of its own."""
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None

    @field_validator("n")
    @classmethod
    def _check_n(cls, n: int | None) -> int | None:
        if n is not None and not 1 <= n <= MOST_CHOICES:
            raise wrong(f"give a whole number from 1 to {MOST_CHOICES}")
        return n

    @property
    def num_choices(self) -> int:
        """Texts for each prompt."""
        return self.n or 1

    @property
    def ignored_fields(self) -> list[str]:
        """Names that are no field of this body; routers and other engines' clients send such."""
        return sorted(name for name, value in (self.model_extra or {}).items() if value is not None)


class CompletionBody(GenerationBody):
    """Body of `/v1/completions`."""

    prompt: Prompt
    best_of: Count = None
    echo: bool | None = None
    logprobs: Count = None
    suffix: Any = None

    @model_validator(mode="after")
    def _check(self) -> CompletionBody:
        if self.suffix not in (None, ""):
            raise wrong_field(
                "suffix", self.suffix, "inserting text is not supported; leave it out"
            )
        if self.best_of is not None and self.best_of != self.num_choices:
            raise wrong_field(
                "best_of", self.best_of, f"it must equal n, {self.num_choices}; use n alone"
            )
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens are wanted at each; None: no log probabilities."""
        return self.logprobs


class ChatBody(GenerationBody):
    """Body of `/v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: Count = None
    logprobs: bool | None = None
    top_logprobs: Count = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _form_of_tool_choice(cls, choice: Any) -> Any:
        return check_tool_choice(choice)

    @model_validator(mode="after")
    def _check(self) -> ChatBody:
        if not self.messages:
            raise wrong_field("messages", [], "it is empty; give at least one message")
        for name in ("functions", "function_call"):
            if getattr(self, name) is not None:
                raise wrong_field(name, getattr(self, name), "it is an old form; use tools")
        if self.audio is not None or (self.modalities or ["text"]) != ["text"]:
            name = "modalities" if self.audio is None else "audio"
            raise wrong_field(name, getattr(self, name), "the model writes text only")
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong_field("top_logprobs", self.top_logprobs, "it needs logprobs: true")
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise wrong_field(
                "max_tokens",
                self.max_tokens,
                f"max_completion_tokens is {self.max_completion_tokens}; give one of the two",
            )
        self._check_tool_choice()
        return self

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens are wanted at each; None: no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that may be called."""
        return (self.tools or []) if self.tool_choice != "none" else []

    def _check_tool_choice(self) -> None:
        choice, names = self.tool_choice, [tool.function.name for tool in self.tools or ()]
        if choice not in (None, "none") and not names:
            got = choice if isinstance(choice, str) else choice.model_dump()
            raise wrong_field("tool_choice", got, "it needs tools; leave it out")
        if isinstance(choice, NamedTool) and choice.function.name not in names:
            raise wrong_field(
                "tool_choice.function.name", choice.function.name, f"tools has {', '.join(names)}"
            )

    @property
    def template_variables(self) -> dict[str, Any]:
        """Further variables of the chat template."""
        effort = (
            {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        )
        return {**effort, **(self.chat_template_kwargs or {})}
