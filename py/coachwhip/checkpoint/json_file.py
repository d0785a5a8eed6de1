"""Reads the JSON files of a checkpoint, with errors that name file, line and column."""

from __future__ import annotations

import json
import math
from pathlib import Path

from ..errors import CheckpointError

_FLOAT_NAMES = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def read_json_object(path: Path) -> dict:
    """Reads one JSON object from a UTF-8 file, with or without a byte order mark.

    Floats that JSON cannot spell are accepted as bare `Infinity`, `-Infinity` and `NaN` (what
    Python writes) and as `{"__float__": "Infinity"}` (what transformers 5 writes).

    Raises:
        CheckpointError: The file is missing, unreadable, not UTF-8, not JSON, or not an object.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(path, "no such file") from None
    except OSError as e:
        raise CheckpointError(path, f"cannot be read: {e.strerror or e}") from None
    return parse_json_object(data, path)


def parse_json_object(data: bytes, path: Path, what: str = "") -> dict:
    """Parses the bytes of one JSON object.

    Args:
        data: UTF-8 text; a byte order mark is skipped.
        path: File named in errors.
        what: Part of the file named in errors, such as "header".

    Raises:
        CheckpointError: As `read_json_object`; also for a key given twice.
    """
    part = f"{what} " if what else ""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        before = e.object[: e.start]
        line, column = before.count(b"\n") + 1, e.start - before.rfind(b"\n")
        raise CheckpointError(
            path,
            f"{part}line {line} column {column}: byte 0x{e.object[e.start]:02x} is not UTF-8",
            "save the file as UTF-8",
        ) from None
    try:
        value = json.loads(text, object_pairs_hook=_pairs)
    except json.JSONDecodeError as e:
        raise CheckpointError(
            path, f"{part}line {e.lineno} column {e.colno}: {e.msg}", "the file is not valid JSON"
        ) from None
    except _Repeated as e:
        raise CheckpointError(path, f"{part}gives the key {e.key!r} twice") from None
    except (ValueError, RecursionError) as e:  # a number of too many digits, too deep a nesting
        raise CheckpointError(path, f"{part}cannot be parsed as JSON: {e}") from None
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", type(None): "null"}.get(type(value), "a number")
        kind = "a boolean" if isinstance(value, bool) else kind
        raise CheckpointError(path, f"{part}is {kind}, but must be a JSON object {{...}}")
    return value


class _Repeated(Exception):
    def __init__(self, key: str):
        self.key = key


def _pairs(pairs: list[tuple[str, object]]) -> object:
    """Builds an object from its pairs; `{"__float__": "Infinity"}` becomes the float it names."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen = set()
        raise _Repeated(next(k for k, _ in pairs if k in seen or seen.add(k)))
    name = found.get("__float__")
    if len(found) == 1 and isinstance(name, str) and name in _FLOAT_NAMES:
        return _FLOAT_NAMES[name]
    return found
