"""`Grammar`: which texts a request may generate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import RequestError
from .schema_limits import check_schema

KINDS = ("json_object", "json_schema", "regex", "lark", "choice")
"""What a grammar may be given as."""
LONGEST_GRAMMAR = 1 << 17
"""Most characters of a grammar: compiling one takes up to a second per 50,000 of them."""


@dataclass(frozen=True)
class Grammar:
    """The texts that a request may generate; hashable.

    | kind | value | the text |
    |---|---|---|
    | json_object | None | a JSON object |
    | json_schema | a JSON schema: a mapping, or `True` for any, or either as a string | JSON that
    it allows |
    | regex | a regular expression, in the syntax of Rust's regex crate | matches it as a whole |
    | lark | a grammar in llguidance's dialect of Lark | is derived from its rule `start` |
    | choice | strings | is one of them |

    `value` is kept as a string, that of a schema as JSON in the order given, which is the order of
    an object's properties; choices are kept as a tuple.

    Raises:
        RequestError: The kind is unknown, or the value is not of the kind's type, or too long.
            Whether it is a right schema, expression or grammar shows when it meets a tokenizer.
    """

    kind: str
    value: Mapping | Sequence[str] | str | bool | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RequestError("grammar.kind", self.kind, f"give one of {', '.join(KINDS)}")
        object.__setattr__(self, "value", getattr(self, f"_{self.kind}")(self.value))
        if self.size > LONGEST_GRAMMAR:
            raise RequestError(
                "grammar.value", f"{self.size} characters", f"give at most {LONGEST_GRAMMAR}"
            )

    @property
    def size(self) -> int:
        """Characters of the value."""
        return len(self.value if isinstance(self.value, str) else "".join(self.value or ()))

    def _json_object(self, value: object) -> None:
        if value is not None:
            raise self._wrong("leave it out for the kind json_object")

    def _json_schema(self, value: object) -> str:
        hint = "give a JSON schema, as a mapping or as a string"
        try:
            schema = json.loads(value) if isinstance(value, str) else value
            text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        except RecursionError:
            raise RequestError("grammar.value", "a schema", "it is nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise self._wrong(f"{hint} ({error})") from None
        if schema is True:
            return "{}"
        if not isinstance(schema, Mapping):
            raise self._wrong(hint)
        if len(text) <= LONGEST_GRAMMAR:
            check_schema(schema)
        return text

    def _regex(self, value: object) -> str:
        return self._text(value, "a regular expression")

    def _lark(self, value: object) -> str:
        return self._text(value, "a Lark grammar")

    def _choice(self, value: object) -> tuple[str, ...]:
        if (
            isinstance(value, (str, Mapping))
            or not isinstance(value, Sequence)
            or not value
            or not all(isinstance(text, str) and text for text in value)
        ):
            raise self._wrong("give non-empty strings, at least one")
        return tuple(dict.fromkeys(value))

    def _text(self, value: object, what: str) -> str:
        if not isinstance(value, str) or not value:
            raise self._wrong(f"give {what} as a string")
        return value

    def _wrong(self, message: str) -> RequestError:
        return RequestError("grammar.value", self.value, message)
