"""Messages of a conversation, and what a chat template gets of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator
from pydantic_core import from_json

from ..errors import shown
from .fields import Body, wrong, wrong_field


class CalledFunction(Body):
    """Name and arguments of a call that an assistant made."""

    name: str
    arguments: str | dict[str, Any] | None = None

    @field_validator("arguments", mode="after")
    @classmethod
    def _parse(cls, arguments: str | dict | None) -> dict[str, Any]:
        """Templates walk through the arguments, so OpenAI's text of them becomes an object."""
        if not isinstance(arguments, str):
            return arguments or {}
        try:
            found = from_json(arguments or "{}", allow_inf_nan=False)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise wrong("give the text of a JSON object")
        return found


class ToolCall(Body):
    """A call that an assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    """One message; `content` is a text or a list of text parts, None where there is none."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _join(cls, content: Any) -> Any:
        """Joins parts with line breaks: templates of text models take one text."""
        if content is None or isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise wrong("give a text or a list of parts")
        texts = []
        for i, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            text = part.get(kind) if kind in ("text", "refusal") else None
            if isinstance(part, dict) and isinstance(kind, str) and kind not in ("text", "refusal"):
                raise wrong(f"part {i} is of type {shown(kind)}; the model reads text only")
            if not isinstance(text, str):
                raise wrong(f'part {i} is {shown(part)}; give {{"type": "text", "text": "..."}}')
            texts.append(text)
        return "\n".join(texts)

    @model_validator(mode="after")
    def _check(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise wrong_field("content", None, f"a message of role {self.role} has a text")
        if self.tool_calls and self.role != "assistant":
            got = [call.function.name for call in self.tool_calls]
            raise wrong_field("tool_calls", got, f"only an assistant makes calls, not {self.role}")
        return self

    def for_template(self) -> dict[str, Any]:
        """Returns plain data under the names that templates read; `developer` is `system`."""
        plain = self.model_dump(exclude_none=True)
        if self.role == "developer":
            plain["role"] = "system"
        return plain
