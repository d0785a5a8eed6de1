"""A translated body: what the engine is asked, and how its outputs become a response."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..outputs import RequestOutput
from ..sampling.params import SamplingParams
from .assistant_text import AssistantText
from .bodies import ChatBody, CompletionBody
from .choices import ChatChoice, CompletionChoice, check_finished
from .frontend import Frontend
from .reasoning import opens_reasoning
from .usage import usage


@dataclass(frozen=True)
class EngineRequest:
    """One text to generate: the arguments of `Engine.add_request`."""

    prompt_token_ids: list[int]
    params: SamplingParams
    prompt: str | None = None
    priority: int = 0
    cache_salt: str | None = None


@dataclass(frozen=True)
class Job:
    """All texts that one body asks for.

    `requests[p * n + c]` is choice `c` of prompt `p`, and choice `p * n + c` of the response.
    Responses and chunks are plain dicts in the order of OpenAI's documentation.
    """

    body: CompletionBody | ChatBody
    frontend: Frontend
    model: str
    """Name of the model in the response."""
    requests: tuple[EngineRequest, ...]
    echoes: tuple[str, ...]
    """What comes before each text: its prompt with `echo`, else nothing."""
    id: str
    created: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""

    @property
    def is_chat(self) -> bool:
        """Whether the body is one of `/v1/chat/completions`."""
        return isinstance(self.body, ChatBody)

    def choice(self, index: int) -> CompletionChoice | ChatChoice:
        """Returns what writes one choice; a stream keeps it from chunk to chunk."""
        text, count = self.frontend.token_text, self.body.num_logprobs
        if self.is_chat:
            tools = self.body.callable_tools
            opened = opens_reasoning(self.requests[index].prompt or "")
            parts = AssistantText(tools, opened or self.frontend.reasons, opened)
            return ChatChoice(index, text, count, parts)
        return CompletionChoice(index, text, count, self.echoes[index])

    def response(self, outputs: Sequence[RequestOutput]) -> dict[str, object]:
        """Returns the response body.

        Args:
            outputs: Finished outputs of `requests`, in their order.

        Raises:
            ApiError: A text ended with an error, or was aborted.
        """
        for output in outputs:
            check_finished(output)
        choices = [self.choice(i).whole(o) for i, o in enumerate(outputs)]
        return {**self._head(stream=False), "choices": choices, "usage": self.usage(outputs)}

    def chunk(self, choices: list[dict], usage: dict | None = None) -> dict[str, object]:
        """Returns a chunk of a stream.

        Args:
            choices: What `choice(i).opening()` or `.chunk()` gave; empty in the chunk of usage.
            usage: For all texts; in each chunk null or not there, but in the last.
        """
        chunk = {**self._head(stream=True), "choices": choices}
        options = self.body.stream_options
        if options is not None and options.include_usage:
            chunk["usage"] = usage
        return chunk

    def usage(self, outputs: Sequence[RequestOutput]) -> dict[str, object]:
        """Returns the usage of all texts; the outputs may be unfinished."""
        return usage(outputs, self.body.num_choices)

    def _head(self, stream: bool) -> dict[str, object]:
        kind = "text_completion"
        if self.is_chat:
            kind = "chat.completion.chunk" if stream else "chat.completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.frontend.system_fingerprint,
        }


def new_id(chat: bool) -> str:
    """Returns an id that no other response has."""
    return f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
