"""What counts as a number where a user may give one."""

from __future__ import annotations

import math


def is_real(value: object) -> bool:
    """Says whether a value is an int or float, but no bool, that is finite as a float."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
