"""From bytes to a checked body, and from what is wrong with one to a clear error."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from ..errors import MISSING, shown
from .api_error import ApiError
from .bodies import ChatBody, CompletionBody
from .fields import Body

COMPLETIONS_URL, CHAT_URL = "/v1/completions", "/v1/chat/completions"
URLS = {COMPLETIONS_URL: CompletionBody, CHAT_URL: ChatBody}
"""URL -> the model of its body."""

AnyBody = TypeVar("AnyBody", bound=Body)

_FIXES = {
    "string_type": "give a text",
    "bool_type": "give true or false",
    "int_type": "give a whole number",
    "float_type": "give a number",
    "list_type": "give a list",
    "dict_type": "give an object",
    "model_type": "give an object",
    "model_attributes_type": "give an object",
    "missing": "give it",
}


def parse_json(raw: bytes | str) -> Any:
    """Returns the JSON value; NaN, infinity and broken UTF-8 are none.

    Raises:
        ApiError: It is no JSON; the message says where.
    """
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}", code="invalid_json") from None


def parse_body(raw: bytes | str | dict, url: str) -> CompletionBody | ChatBody:
    """Returns the body of a request, every field of its kind.

    Args:
        raw: JSON, or what was read from it.
        url: One of `URLS`.

    Raises:
        ApiError: It is no JSON object, or a field is missing or of the wrong kind.
    """
    return parse_as(parse_json(raw) if isinstance(raw, (bytes, str)) else raw, URLS[url])


def parse_as(value: Any, kind: type[AnyBody]) -> AnyBody:
    """Returns a JSON value as a body of a kind.

    Raises:
        ApiError: It is no JSON object, or a field is missing or of the wrong kind.
    """
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is {shown(value)}: give a JSON object")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _api_error(error) from None


def _api_error(error: ValidationError) -> ApiError:
    """Returns the first thing that is wrong, with field, value and fix."""
    found = error.errors(include_url=False)[0]
    field, kind, got = _path(found["loc"]), found["type"], found["input"]
    context = found.get("ctx", {})
    fix = _FIXES.get(kind) or context.get("fix")
    if kind == "rule":
        field, got = ".".join(filter(None, (field, context["field"]))), context["got"]
    elif kind == "literal_error":
        fix = f"give {context['expected']}"
    if kind == "missing":
        return ApiError(
            400,
            f"{field} is {shown(MISSING)}: {fix}",
            param=field,
            code="missing_required_parameter",
        )
    return ApiError(
        400,
        f"{field or 'the body'} is {shown(got)}: {fix or found['msg']}",
        param=field or None,
        code="invalid_type" if kind in _FIXES else "invalid_value",
    )


def _path(location: tuple[int | str, ...]) -> str:
    """Returns a location as a user writes it: `messages[0].content`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part not in ("str", "list", "dict", "NamedTool") and not part.startswith(
            ("function-", "literal[", "list[", "dict[", "nullable[")
        ):
            text += f".{part}" if text else part
    return text
