"""Values of tool arguments: from the text of a call to JSON, by the tool's schema."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

STRING, ANY = frozenset({"string"}), frozenset()
_KINDS = {str: "string", bool: "boolean", type(None): "null", list: "array", dict: "object"}
_DEEPEST = 16
"""References and alternatives that are followed inside one another."""


class ArgumentTypes:
    """JSON types of a tool's parameters.

    Args:
        schema: JSON schema of the tool's arguments; None: anything.
    """

    def __init__(self, schema: Mapping | None) -> None:
        self._root = schema or {}
        properties = self._root.get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}

    def of(self, name: str) -> frozenset[str]:
        """Returns the types that a parameter may have; empty where the schema does not say."""
        found = self._types(self._properties.get(name), 0)
        return ANY if found is None else frozenset(found)

    def _types(self, schema: object, depth: int) -> set[str] | None:
        """Returns the types of a schema; None: any."""
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return None
        given = schema.get("type")
        if isinstance(given, str):
            return {given}
        if isinstance(given, list):
            return set(filter(lambda one: isinstance(one, str), given)) or None
        if "const" in schema:
            return {_kind(schema["const"])}
        if isinstance(schema.get("enum"), list):
            return set(map(_kind, schema["enum"])) or None
        if isinstance(schema.get("$ref"), str):
            return self._types(self._referred(schema["$ref"]), depth + 1)
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list):
                each = [self._types(one, depth + 1) for one in schema[name]]
                return None if None in each or not each else set().union(*each)
        if isinstance(schema.get("allOf"), list):
            each = [self._types(one, depth + 1) for one in schema["allOf"]]
            known = [one for one in each if one is not None]
            return set.intersection(*known) or None if known else None
        return None

    def _referred(self, reference: str) -> object:
        found: object = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, Mapping) else None
        return found


def to_json(text: str, types: frozenset[str]) -> str:
    """Returns a value as JSON: of one of the types where the text can be read so, else a string.

    Args:
        text: As the model wrote it.
        types: From `ArgumentTypes.of`.
    """
    if types == STRING:
        return quoted(text)
    bare = text.strip()
    try:
        value = json.loads(_WORDS.get(bare, bare), parse_constant=_refuse, parse_float=_finite)
        # Half a surrogate pair can be spelled in JSON but not sent, nor can what nests too deep.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return quoted(text)
    kind = _kind(value)
    if kind == "number" and value == int(value) and types & {"integer"} and "number" not in types:
        value, kind = int(value), "integer"
    if types and kind not in types and not (kind == "integer" and "number" in types):
        return quoted(text)
    if kind == "string" and types:
        return quoted(text)  # the quotes are part of a string that is written without
    return json.dumps(value, ensure_ascii=False)


def quoted(text: str) -> str:
    """Returns a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python's words, which models write too."""


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else _KINDS[type(value)]


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is too large")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
