"""Says in one line what is wrong with a value of an option."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from ..errors import ConfigError
from .origins import Origin, place_of

_RANGE = ("greater_than_equal", "less_than_equal", "int_type", "multiple_of")
_STRANGE_NAMES = ("unexpected_keyword_argument", "unexpected_positional_argument")


def config_error(error: ValidationError, origins: Mapping[str, Origin]) -> ConfigError:
    """Returns what pydantic found first as the error that users see.

    Args:
        error: Of `EngineOptions`.
        origins: Where the values come from.
    """
    from .option_info import OPTIONS  # made from the options that this error is about

    found = error.errors(include_url=False)[0]
    name, got = str(found["loc"][0]), found["input"]
    if found["type"] in _STRANGE_NAMES:
        return unknown_option(name, got, OPTIONS)
    option = OPTIONS[name]
    code, allowed, hint = "value", option.allowed, "leave it out"
    if option.kind == "choice":
        code, hint = "choice", near(got, option.choices) or f"the default is {option.default}"
    elif found["type"] in _RANGE:
        code = "range"
        if option.multiple > 1 and type(got) is int:
            hint = f"give {max(option.least, -(-got // option.multiple) * option.multiple)}"
        elif option.least is not None:
            hint = f"give {option.least} or more"
        if found["type"] == "less_than_equal":
            allowed, hint = f"{allowed}, at most {option.most}", f"give {option.most} or less"
    elif option.kind == "memory":
        hint = "give bytes such as 8GiB, or a share such as 0.5 of the machine's memory"
    elif option.kind == "json":
        hint = 'give {"method": "mtp", "num_speculative_tokens": 3}'
    return ConfigError(code, name, got, allowed, hint, place_of(origins, name, got))


def unknown_option(
    name: str, got: object, known: Iterable[str], place: str | None = None
) -> ConfigError:
    """Returns the error about an option that does not exist, with the nearest one that does."""
    known = list(known)
    return ConfigError(
        "unknown_option",
        name,
        got,
        "an option of the engine",
        near(name, known) or f"known are {', '.join(known)}",
        place,
    )


def near(got: object, known: Iterable[str]) -> str:
    """Returns a question about the nearest known spelling; empty if none is near."""
    found = difflib.get_close_matches(str(got), list(known), n=1)
    return f"did you mean {found[0]}?" if found else ""
