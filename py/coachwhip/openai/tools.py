"""Functions that a model may call, as a body describes them."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import field_validator

from .fields import Body, wrong

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CHOICES = ("none", "auto", "required")


class Function(Body):
    """A function's name, what it is for, and the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise wrong("give 1 to 64 letters, digits, _, - or .")
        return name


class Tool(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Returns plain data, as it was given."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


class FunctionName(Body):
    """The name alone."""

    name: str


class NamedTool(Body):
    """A `tool_choice` that demands one function."""

    type: Literal["function"]
    function: FunctionName


def check_tool_choice(choice: Any) -> Any:
    """Returns a `tool_choice` of a form that there is; its parts are checked by their models."""
    if choice is None or choice in _CHOICES or isinstance(choice, NamedTool):
        return choice
    if isinstance(choice, dict):
        return NamedTool.model_validate(choice)
    raise wrong(
        f'give {", ".join(_CHOICES)} or {{"type": "function", "function": {{"name": ...}}}}'
    )
