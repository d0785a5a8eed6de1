"""Types of body fields: JSON values taken as they are, never converted from another kind."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from ..real_number import is_real


class Body(BaseModel):
    """A JSON object with strict types; names that are not fields are kept in `model_extra`."""

    model_config = ConfigDict(
        strict=True, extra="allow", frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )


_MOST_DIGITS = 20


def wrong(fix: str) -> PydanticCustomError:
    """Returns an error about the field that is validated; `parse` adds its name and value."""
    return PydanticCustomError("value", "{fix}", {"fix": fix})


def wrong_field(field: str, got: object, fix: str) -> PydanticCustomError:
    """Returns the error of a rule over several fields of an object, about one of them."""
    return PydanticCustomError("rule", "{fix}", {"field": field, "got": got, "fix": fix})


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


def _prompt(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        if all(isinstance(one, str) for one in value) or all(_is_id(one) for one in value):
            return value
        if all(isinstance(one, list) and one and all(map(_is_id, one)) for one in value):
            return value
    raise wrong("give a text, a list of texts, a list of token ids, or a list of such lists")


def _texts(value: Any) -> Any:
    listed = [value] if isinstance(value, str) else value
    if value is None or (isinstance(listed, list) and all(isinstance(s, str) for s in listed)):
        return None if value is None else tuple(listed)
    raise wrong("give a text or a list of texts")


def _count(value: Any) -> Any:
    if value is not None and type(value) is not int:
        raise wrong("give a whole number")
    if value is not None and not -(2**63) <= value < 2**64:
        raise wrong("give a whole number of at most 64 bits")
    return value


def _number(value: Any) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise wrong("give a number")
    if value is not None and not is_real(value):
        raise wrong("give a finite number")
    return value


def _bias(value: Any) -> Any:
    for token, bias in value.items() if isinstance(value, dict) else ():
        _number(bias)
        if isinstance(token, str) and len(token) > _MOST_DIGITS:
            raise wrong(f"token ids have at most {_MOST_DIGITS} digits")
    return value


Prompt = Annotated[str | list, BeforeValidator(_prompt)]
"""A text, texts, token ids, or lists of token ids."""
Texts = Annotated[tuple[str, ...] | None, BeforeValidator(_texts)]
"""A text or a list of them, as a tuple."""
Count = Annotated[int | None, BeforeValidator(_count)]
"""A whole number of at most 64 bits, which is what reaches the engine."""
Bias = Annotated[dict[str, Any] | None, BeforeValidator(_bias)]
"""Token ids as texts -> numbers."""
Number = Annotated[float | int | None, BeforeValidator(_number)]
