"""Refuses JSON schemas whose compilation would not end in reasonable time.

Schemas that hold together (`allOf`, a `$ref` beside other keywords) become one. Patterns that meet
this way are intersected, in time exponential in their number; alternatives multiply; and references
that are met twice at each of many levels unfold to more than any memory holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import RequestError

MOST_PATTERNS = 6
"""Patterns and formats that one value may have to meet together."""
MOST_CHOICES = 1000
"""Combinations of alternatives that one value may have."""
MOST_PARTS = 3000
"""Schemas that one value is described by, references unfolded, or that there are in all."""

Size = tuple[int, int, int]
"""Patterns, combinations of alternatives, and schemas."""


def check_schema(schema: object) -> None:
    """Raises RequestError for a schema that is too much to compile.

    Args:
        schema: A JSON value; one that is nested too deeply to be walked is too much as well.
    """
    try:
        _Sizes(schema).check(schema)
    except RecursionError:
        raise RequestError("grammar.value", "a schema", "it is nested too deeply") from None


class _Sizes:
    def __init__(self, root: object) -> None:
        self._root, self._count = root, 0
        self._known: dict[str, Size] = {}

    def check(self, schema: object) -> None:
        """Checks a schema and all those inside it."""
        if isinstance(schema, list):
            for one in schema:
                self.check(one)
        elif isinstance(schema, Mapping):
            self._count += 1
            patterns, choices, parts = self._size(schema)
            for found, most, what in (
                (patterns, MOST_PATTERNS, "patterns and formats hold together"),
                (choices, MOST_CHOICES, "combinations of alternatives hold together"),
                (max(parts, self._count), MOST_PARTS, "schemas are in it, references unfolded"),
            ):
                if found > most:
                    raise RequestError(
                        "grammar.value", schema, f"too many {what}; give at most {most}"
                    )
            for value in schema.values():
                self.check(value)

    def _size(self, schema: object) -> Size:
        """Returns the size of what one value has to meet."""
        if not isinstance(schema, Mapping):
            return 0, 1, 1
        patterns, choices, parts = ("pattern" in schema) + ("format" in schema), 1, 1
        together = [self._size(one) for one in _listed(schema.get("allOf"))]
        if isinstance(schema.get("$ref"), str):
            together.append(self._referred(schema["$ref"]))
        for name in ("anyOf", "oneOf"):
            if sizes := [self._size(one) for one in _listed(schema.get(name))]:
                most, sums = max(size[0] for size in sizes), zip(*sizes, strict=True)
                _, some, all_parts = map(sum, sums)
                together.append((most, some, all_parts))
        for more, some, others in together:
            # Cut, so that numbers stay small where references multiply.
            patterns = min(patterns + more, MOST_PARTS + 1)
            choices = min(choices * some, MOST_PARTS + 1)
            parts = min(parts + others, MOST_PARTS + 1)
        return patterns, choices, parts

    def _referred(self, reference: str) -> Size:
        if reference not in self._known:
            self._known[reference] = (0, 1, 1)  # of one that leads back to itself
            found: object = self._root
            for part in reference.removeprefix("#").split("/")[1:]:
                part = part.replace("~1", "/").replace("~0", "~")
                found = found.get(part) if isinstance(found, Mapping) else None
            self._known[reference] = self._size(found)
        return self._known[reference]


def _listed(value: object) -> list:
    return value if isinstance(value, list) else []
