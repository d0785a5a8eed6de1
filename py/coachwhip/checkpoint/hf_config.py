"""Typed access to a checkpoint's `config.json`, tolerant of its spellings, strict about values."""

from __future__ import annotations

import math
from pathlib import Path

from ..errors import MISSING, ConfigError
from .json_file import read_json_object

_REQUIRED = object()

LARGEST_SIZE = 1 << 24
"""Bound of every size in a config: far above any model, far below what overflows."""


class HFConfig:
    """One JSON object of a config, with getters that check what they return.

    A getter takes the key and its older aliases; the first one present wins, and an alias with
    another value is noted in `warnings`. A key that is null counts as absent.

    Args:
        values: The object.
        source: File named in errors.
        prefix: Put before keys in errors, such as `ssm_cfg.`.
        warnings: List that warnings are added to.
    """

    def __init__(
        self, values: dict, source: Path, prefix: str = "", warnings: list[str] | None = None
    ):
        self.values, self.source, self.prefix = values, source, prefix
        self.warnings = [] if warnings is None else warnings

    @classmethod
    def read(cls, path: Path) -> HFConfig:
        """Reads `config.json`; raises CheckpointError when it is not a JSON object."""
        return cls(read_json_object(path), path)

    def nested(self, key: str) -> HFConfig:
        """Returns the object below `key` (empty when absent), sharing this one's warnings."""
        value = self.get(key, default={})
        if not isinstance(value, dict):
            raise self.error(key, value, "an object", "correct the key")
        return HFConfig(value, self.source, f"{self.prefix}{key}.", self.warnings)

    def error(
        self, key: str, got: object, allowed: str, hint: str, code: str = "config_value"
    ) -> ConfigError:
        """Makes the error about one key; the caller raises it."""
        return ConfigError(code, self.prefix + key, got, allowed, hint, self.source)

    def has(self, key: str) -> bool:
        """Says whether `key` is present and not null."""
        return self.values.get(key) is not None

    def get(self, *keys: str, default: object = _REQUIRED) -> object:
        """Returns the value of the first of `keys` that is present, else `default`."""
        return self._find(keys, default)[1]

    def size(self, *keys: str, default: object = _REQUIRED) -> int:
        """Returns a positive integer of at most `LARGEST_SIZE`, or the default as it is."""
        return self.named_size(*keys, default=default)[1]

    def named_size(self, *keys: str, default: object = _REQUIRED) -> tuple[str, int]:
        """Returns a size as `size` does, after the key it was found under."""
        key, value = self._find(keys, default)
        return key, value if value is default else self.checked_size(key, value)

    def checked_size(self, key: str, value: object) -> int:
        """Returns `value` when it is a positive integer of at most `LARGEST_SIZE`, else raises."""
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SIZE:
            raise self.error(key, value, f"an integer from 1 to {LARGEST_SIZE}", "correct the size")
        return value

    def count(self, key: str, default: int) -> int:
        """Returns an integer from 0 to `LARGEST_SIZE`."""
        value = self.get(key, default=default)
        if type(value) is not int or not 0 <= value <= LARGEST_SIZE:
            raise self.error(key, value, f"an integer from 0 to {LARGEST_SIZE}", "correct the key")
        return value

    def factor(self, key: str, default: float) -> float:
        """Returns a positive, finite number."""
        value = self.get(key, default=default)
        number = _number(value)
        if number is None or not 0.0 < number < math.inf:
            raise self.error(key, value, "a positive number", "correct the key")
        return number

    def flag(self, *keys: str, default: bool) -> bool:
        """Returns a boolean."""
        key, value = self._find(keys, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false", "correct the key")
        return value

    def require_false(self, key: str, reason: str) -> None:
        """Raises when the flag `key` is set; `reason` says why it is not supported."""
        if self.flag(key, default=False):
            raise self.error(key, True, "false", reason, "unsupported")

    def require_one_of(self, key: str, allowed: tuple[str, ...], default: str) -> None:
        """Raises when the string at `key` is not one of `allowed`."""
        value = self.get(key, default=default)
        if not isinstance(value, str) or value not in allowed:
            names = " or ".join(f'"{name}"' for name in allowed)
            raise self.error(key, value, names, "no other function is supported", "unsupported")

    def eps(self, *keys: str, default: float) -> float:
        """Returns the epsilon of a norm: a number in (0, 1)."""
        key, value = self._find(keys, default)
        number = _number(value)
        if number is None or not 0.0 < number < 1.0:
            raise self.error(key, value, "a number between 0 and 1", "1e-5 is usual")
        return number

    def dt_limit(self, *keys: str) -> tuple[float, float]:
        """Returns the bounds of dt, (0, inf) when absent.

        `time_step_min`, `time_step_max` and `time_step_floor` only steer the initialisation of
        dt_bias in training and are never read.
        """
        key, value = self._find(keys, (0.0, math.inf))
        limits = [_number(v) for v in value] if isinstance(value, (list, tuple)) else []
        if len(limits) != 2 or None in limits or not 0.0 <= limits[0] < limits[1]:
            raise self.error(
                key, value, "two numbers, 0 <= low < high", "[0.0, Infinity] means no limit"
            )
        return limits[0], limits[1]

    def token_ids(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Returns the ids of a special token: one id, a list, or none."""
        value = self.get(key, default=None)
        if value is None:
            return default
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise self.error(key, value, "a token id or a list of them", "correct the key")
        return tuple(dict.fromkeys(ids))

    def _find(self, keys: tuple[str, ...], default: object) -> tuple[str, object]:
        present = [key for key in keys if self.has(key)]
        if not present:
            if default is _REQUIRED:
                got = None if keys[0] in self.values else MISSING
                raise self.error(keys[0], got, "given", "add it", "config_missing")
            return keys[0], default
        first = present[0]
        for other in present[1:]:
            if self.values[other] != self.values[first]:
                self.warnings.append(
                    f"{self.prefix}{other} is ignored: it differs from {self.prefix}{first}"
                )
        return first, self.values[first]


def _number(value: object) -> float | None:
    """Returns a JSON number, or one spelled as a string, as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number
