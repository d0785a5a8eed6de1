"""Reads an input to its end before anything else happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice

from ..errors import MOST_LISTED, BatchError, RequestError, shown
from ..openai import ApiError, Frontend
from ..openai.translate import check_rest, sampling_params
from .ids import IdList
from .input_file import BatchInput
from .line import BatchLine, LineError, parse_line

_MOST_NAMES = 20
_MOST_FORMS = 1000
"""Bodies but for their prompts that are remembered as right, so that memory has a bound."""


@dataclass
class CheckedInput:
    """What is known of an input that can be run."""

    ids: IdList = field(default_factory=IdList)
    """Ids of all lines, in their order."""
    digest: str = ""
    """64 hex digits over all lines, whatever they are compressed with."""
    other_models: Counter[str] = field(default_factory=Counter)
    """Models that lines name and that are not the one which runs, with the lines of each."""
    ignored_fields: Counter[str] = field(default_factory=Counter)
    """Fields that mean nothing here, with the lines of each."""


def validate(
    source: BatchInput, frontend: Frontend, on_line: Callable[[], None] = lambda: None
) -> CheckedInput:
    """Checks every line: its form, its id, its fields and their ranges.

    Whether a prompt fits the model shows when it is tokenized; a line that does not becomes a
    failed one.

    Args:
        source: The input.
        frontend: The model.
        on_line: Called after each line.

    Raises:
        BatchError: Lines are wrong; the message numbers and describes up to `MOST_LISTED`.
    """
    found, problems, wrong = CheckedInput(), [], 0
    content, forms = sha256(), set()
    for number, raw in source.lines():
        content.update(raw + b"\n")
        try:
            line = parse_line(raw)
            if (form := line.form) not in forms:
                _check_body(line, frontend)
                if len(forms) < _MOST_FORMS:
                    forms.add(form)
        except LineError as error:
            wrong += 1
            if len(problems) < MOST_LISTED:
                problems.append(f"line {number}: {error}")
        else:
            found.ids.add(line.custom_id)
            _note(found, line, frontend)
        on_line()
    if problems:
        if wrong > len(problems):
            problems.append(f"and {wrong - len(problems)} more")
        raise BatchError(
            source.name, problems, "correct them; nothing was run", f"{wrong} lines are wrong"
        )
    if not len(found.ids):
        raise BatchError(source.name, "has no requests", "give one JSON object per line")
    if (repeated := found.ids.first_repeated()) is not None:
        raise _repeated_id(source, *repeated)
    found.digest = content.hexdigest()
    return found


def _check_body(line: BatchLine, frontend: Frontend) -> None:
    try:
        frontend.served_name(line.body.model)
        sampling_params(line.body, frontend)
        check_rest(line.body, frontend)
    except (ApiError, RequestError) as error:
        raise LineError(f"body: {error}") from None


def _note(found: CheckedInput, line: BatchLine, frontend: Frontend) -> None:
    """Counts what the user should be told; names beyond the first few are left out."""
    model = line.body.model
    if model is not None and model not in frontend.served_names:
        _count(found.other_models, model)
    for name in line.body.ignored_fields:
        _count(found.ignored_fields, name)


def _count(names: Counter[str], name: str) -> None:
    if name in names or len(names) < _MOST_NAMES:
        names[name] += 1


def _repeated_id(source: BatchInput, earlier: int, later: int) -> BatchError:
    """Returns the error about an id that two lines have, by their places among the lines."""
    numbers = [
        (number, raw)
        for place, (number, raw) in enumerate(islice(source.lines(), later + 1))
        if place in (earlier, later)
    ]
    custom_id = parse_line(numbers[1][1]).custom_id
    return BatchError(
        source.name,
        f"lines {numbers[0][0]} and {numbers[1][0]} have the same custom_id {shown(custom_id)}",
        "give each line its own",
    )
