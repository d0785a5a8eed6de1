"""Amounts of memory as people write them."""

from __future__ import annotations

import re

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(e\d+)?\s*([a-z]+|%)?", re.IGNORECASE)
_MOST_BYTES = 1 << 60


def memory_amount(value: object) -> int | float | None:
    """Returns bytes as a whole number, or a share above 0 and up to 1 as a float.

    A number without a unit is a share up to 1, and bytes above. Units are B, KB, MB, GB, TB (powers
    of 1000), KiB, MiB, GiB, TiB (powers of 1024) and % (a share). None is returned for all else:
    for a bare `8G`, too, which is 7 % more or less depending on whom one asks.

    Args:
        value: A number, or text such as `8GiB`, `0.5` or `40%`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if not isinstance(value, str):
        return _checked(value)
    found = _NUMBER.fullmatch(value.strip())
    if found is None:
        return None
    number = float(found[1] + (found[2] or ""))
    unit = (found[3] or "").lower()
    if not unit:
        return _checked(number)
    if unit == "%":
        return number / 100 if 0 < number <= 100 else None
    size = number * _UNITS.get(unit, 0)
    return int(size) if 1 <= size <= _MOST_BYTES else None


def shown_bytes(size: int) -> str:
    """Returns bytes in the largest unit that leaves a number of at least one, three digits long."""
    unit, number = "B", float(size)
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1024:
            break
        unit, number = larger, number / 1024
    digits = 0 if unit == "B" or number >= 100 else 1 if number >= 10 else 2
    return f"{number:.{digits}f} {unit}"


def _checked(number: int | float) -> int | float | None:
    if 0 < number <= 1:
        return float(number)
    # Not a number compares false with everything.
    return int(number) if 1 < number <= _MOST_BYTES and number == int(number) else None
