"""A chat model's text as parts of a message: reasoning, content and tool calls."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from .reasoning import ReasoningSplitter
from .tool_calls import Arguments, CallBegins, Content, Event, ToolCallParser
from .tools import Tool


class AssistantText:
    """Reads one text, in chunks of any size, and writes OpenAI's deltas of it.

    A server that streams feeds each piece of text as it comes, the last one with `last=True` even
    if it is empty, and sends every delta that is not empty; `ChatChoice.chunk` does so:

        delta = text.feed(piece)
        ...
        delta = text.feed(piece, last=True)
        reason = text.finish_reason(output.finish_reason)

    Args:
        tools: Functions that may be called; none: calls are not looked for.
        reasons: Whether the model's reasoning is parted from its answer.
        opened: Whether the prompt opened the reasoning.
    """

    def __init__(self, tools: Sequence[Tool] = (), reasons: bool = False, opened: bool = False):
        self._splitter = ReasoningSplitter(opened) if reasons else None
        self._parser = ToolCallParser(tools) if tools else None

    def feed(self, text: str, last: bool = False) -> dict[str, object]:
        """Returns what a chunk of text adds to the message.

        Args:
            text: The chunk.
            last: Whether the text ends with it, so that nothing is held back any more.

        Returns:
            `reasoning_content`, `content` and `tool_calls`, as far as there is more of each.
        """
        reasoning, answer = ("", text) if self._splitter is None else self._splitter.feed(text)
        if last and self._splitter is not None:
            more, rest = self._splitter.finish()
            reasoning, answer = reasoning + more, answer + rest
        if self._parser is None:
            events: list[Event] = [Content(answer)]
        else:
            events = self._parser.feed(answer) + (self._parser.finish() if last else [])
        return _delta(reasoning, events)

    def finish_reason(self, reason: str | None) -> str | None:
        """Returns OpenAI's reason for a text that ended for the engine's: one that stopped by
        itself and made calls waits for their results."""
        called = self._parser is not None and self._parser.count > 0
        return "tool_calls" if called and reason == "stop" else reason

    def message(self, text: str) -> dict[str, object]:
        """Returns the message of a whole text; the reader has not been fed before."""
        parts = self.feed(text, last=True)
        calls = parts.get("tool_calls", ())
        content = parts.get("content", None if calls else "")
        message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
        if self._splitter is not None and self._splitter.reasons:
            message["reasoning_content"] = parts.get("reasoning_content", "")
        if calls:
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"} for call in calls
            ]
        return message


def _delta(reasoning: str, events: Sequence[Event]) -> dict[str, object]:
    delta: dict[str, object] = {}
    if reasoning:
        delta["reasoning_content"] = reasoning
    content = "".join(event.text for event in events if isinstance(event, Content))
    if content:
        delta["content"] = content
    calls: dict[int, dict] = {}
    for event in events:
        if isinstance(event, CallBegins):
            calls[event.index] = {
                "index": event.index,
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
        elif isinstance(event, Arguments):
            blank = {"index": event.index, "function": {"arguments": ""}}
            call = calls.setdefault(event.index, blank)
            call["function"]["arguments"] += event.text
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta
