"""Reads the sampling defaults of a checkpoint's `generation_config.json`."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import shown
from ..real_number import is_real
from .hf_config import HFConfig


def generation_defaults(config: HFConfig) -> dict[str, bool | int | float]:
    """Returns `do_sample`, `temperature`, `top_p` and `top_k` as far as the file gives them.

    They steer only what a user leaves open: a value that makes no sense is left out, with a line
    in the config's warnings.
    """
    found = {}
    for key, (allowed, fits) in _KEYS.items():
        if not config.has(key):
            continue
        value = config.get(key)
        if fits(value):
            found[key] = value
        else:
            config.warnings.append(
                f"{config.source.name}: {key} {shown(value)} is ignored: it must be {allowed}"
            )
    return found


_KEYS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "do_sample": ("true or false", lambda v: isinstance(v, bool)),
    "temperature": ("a number of at least 0", lambda v: is_real(v) and v >= 0),
    "top_p": ("a number above 0 and at most 1", lambda v: is_real(v) and 0 < v <= 1),
    "top_k": ("an integer of at least 0", lambda v: type(v) is int and v >= 0),
}
