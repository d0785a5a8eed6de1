"""Where the value of an option comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT = "default"
GIVEN = "given"
"""Origin of what the caller gave, on the command line or in Python."""


@dataclass(frozen=True)
class Origin:
    """The place that an option was read from, such as `COACHWHIP_MAX_NUM_SEQS` or
    `serve.toml, line 3`, with the value read there: it counts as long as the option has that
    value."""

    place: str
    value: object
    given: bool = False
    """Whether the caller gave it, so that an error need not say from where it is."""


def place_of(origins: Mapping[str, Origin], name: str, value: object) -> str | None:
    """Returns where an option's value was read from; None if the caller gave it, or nobody."""
    origin = origins.get(name)
    if origin is None or origin.given or origin.value != value:
        return None
    return origin.place
