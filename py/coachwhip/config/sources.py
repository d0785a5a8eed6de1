"""Merges what the caller gave, the environment and a file into one set of options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from ..errors import ConfigError
from .config_file import file_options
from .environment import CONFIG, environment_options
from .invalid import unknown_option
from .option_info import ALIASES
from .options import OPTION_NAMES, EngineOptions
from .origins import GIVEN, Origin
from .speculation import SHORT_FORMS

_CONFIG = "speculative_config"

Layer = dict[str, tuple[object, Origin]]


def options_from(
    values: Mapping[str, object],
    environ: Mapping[str, str] | None = None,
    given: str = GIVEN,
) -> EngineOptions:
    """Makes options from keyword arguments or flags, the environment and a configuration file.

    The first one that has an option wins, in that order; None stands for unset. `config` among the
    values, or `COACHWHIP_CONFIG`, names the file.

    Args:
        values: What the caller gave.
        environ: Environment variables; those of this process when None.
        given: Origin of `values`, as `coachwhip plan` and errors show it.

    Raises:
        ConfigError: A name is unknown (the message has the nearest known one), the file cannot be
            read, or a value is out of range.
    """
    direct = _direct(values, given)
    variables = environment_options(os.environ if environ is None else environ)
    config = direct.pop(CONFIG, None), variables.pop(CONFIG, None)
    named = config[0] or config[1]
    if named is not None and not isinstance(named[0], (str, os.PathLike)):
        raise ConfigError("value", CONFIG, named[0], "the path of a file", "leave it out")
    merged: Layer = {} if named is None else file_options(named[0])
    for layer in (variables, direct):
        merged = _over(layer, merged)
    origins = {name: origin for name, (_, origin) in merged.items()}
    options = EngineOptions(**{n: value for n, (value, _) in merged.items()}, origins=origins)
    # An amount of memory, for one, is read as text and kept as a number.
    kept = {n: replace(origin, value=getattr(options, n)) for n, origin in origins.items()}
    return replace(options, origins=kept)


def _direct(values: Mapping[str, object], given: str) -> Layer:
    """Returns what the caller gave, under our names."""
    layer: Layer = {}
    for key, value in values.items():
        name = ALIASES.get(key, key)
        if name not in OPTION_NAMES and name != CONFIG:
            raise unknown_option(key, value, [*OPTION_NAMES, *ALIASES, CONFIG])
        if value is None:
            continue
        if name in layer and layer[name][0] != value:
            raise ConfigError("twice", key, value, f"the same as {name}", "drop one of the two")
        layer[name] = (value, Origin(given, value, given=True))
    return layer


def _over(strong: Layer, weak: Layer) -> Layer:
    """Returns `weak` with all that `strong` says instead.

    A `speculative_config` replaces weaker short forms, and a short form its key of a weaker
    `speculative_config`.
    """
    left = dict(weak)
    if _CONFIG in strong:
        for short in SHORT_FORMS:
            left.pop(short, None)
    elif _CONFIG in left and isinstance(left[_CONFIG][0], dict):
        value, origin = left[_CONFIG]
        replaced = {key for short, key in SHORT_FORMS.items() if short in strong}
        value = {key: v for key, v in value.items() if key not in replaced}
        left[_CONFIG] = (value, Origin(origin.place, value))
    return left | strong
