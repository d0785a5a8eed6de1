"""The errors a user can meet: each says in one line what is wrong, with its value, and the fix.

`ConfigError` and `CheckpointError` come at start-up, `BatchError` before a batch begins,
`RequestError` when a request is added, `EngineError` and `StorageError` while one runs. The command
line leaves with 2 for the first four and with 1 for the last two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike

MOST_LISTED = 50
"""Problems of one kind that are listed one by one; the rest is counted."""

_LONGEST_VALUE = 120


class Missing:
    """Type of `MISSING`: the value of a field that is not there at all."""

    def __repr__(self) -> str:
        return "missing"


MISSING = Missing()


class CoachwhipError(Exception):
    """Base of every error that coachwhip raises for its user."""


class ConfigError(CoachwhipError):
    """A configuration that cannot run; raised before weights load.

    Args:
        code: Stable identifier in snake_case, for programs that react to it.
        field: Option or key as the user spells it.
        got: Its value; `MISSING` when the field is absent.
        allowed: What it may be, after "must be".
        hint: The fix.
        source: File the field was read from, when there is one.
    """

    def __init__(
        self,
        code: str,
        field: str,
        got: object,
        allowed: str,
        hint: str,
        source: str | PathLike[str] | None = None,
    ):
        self.code, self.field, self.got = code, field, got
        self.allowed, self.hint = allowed, hint
        self.source = None if source is None else str(source)
        where = f"{self.source}: " if self.source else ""
        super().__init__(
            _one_line(f"{where}{field} is {shown(got)}, but must be {allowed}; {hint}")
        )


class _FileError(CoachwhipError):
    """What is wrong with a file, or with several things in it.

    Args:
        path: The file or folder.
        problems: One line, or one line each.
        hint: The fix, when it is the same for all problems.
        summary: Headline over several problems; their count when empty.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        problems: str | Sequence[str],
        hint: str = "",
        summary: str = "",
    ):
        listed = [problems] if isinstance(problems, str) else list(problems)
        self.path, self.problems, self.hint = str(path), tuple(map(_one_line, listed)), hint
        super().__init__(_about_file(self.path, self.problems, hint, summary))


class CheckpointError(_FileError):
    """A checkpoint's files that cannot be read, or tensors that do not fit its config."""


class BatchError(_FileError):
    """A batch that cannot begin or go on as asked; nothing was written."""


class RequestError(CoachwhipError):
    """A request that cannot be served; the engine goes on with the others.

    Args:
        field: Field of the request.
        got: Its value.
        message: What is wrong, with the limit and the fix.
    """

    def __init__(self, field: str, got: object, message: str):
        self.field, self.got, self.message = field, got, message
        super().__init__(_one_line(f"{field} is {shown(got)}: {message}"))


class EngineError(CoachwhipError):
    """A failure of the running engine: the request was right, the engine was not."""


class StorageError(CoachwhipError):
    """A file that cannot be written any more; what was written before is kept."""


def capped(problems: Sequence[str]) -> list[str]:
    """Returns the first `MOST_LISTED` problems, and a line that counts the others."""
    rest = len(problems) - MOST_LISTED
    return [*problems[:MOST_LISTED], *([f"and {rest} more"] if rest > 0 else [])]


def shown(value: object) -> str:
    """Returns `value` as a config file spells it (`true`, `null`, quoted strings), cut if long."""
    if isinstance(value, (PathLike, Missing)):
        text = str(value)
    else:
        try:
            text = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            text = repr(value)
    text = _one_line(text)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _about_file(path: str, problems: Sequence[str], hint: str, summary: str) -> str:
    """Returns what is wrong with a file: one line, or a headline and a line for each problem."""
    end = _one_line(f"; {hint}") if hint else ""
    if len(problems) == 1:
        return f"{_one_line(path)}: {problems[0]}{end}"
    head = f"{_one_line(path)}: {summary or f'{len(problems)} problems'}{end}"
    return "\n".join([head, *(f"  {problem}" for problem in problems)])


def _one_line(text: str) -> str:
    """Collapses line breaks and other unprintable characters, so that a message stays one line."""
    return "".join(c if c.isprintable() else " " for c in str(text))
