"""Reads options from environment variables: `COACHWHIP_MAX_NUM_SEQS=16`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ..errors import ConfigError
from .invalid import unknown_option
from .option_info import ALIASES, OPTIONS, OptionInfo
from .origins import Origin

PREFIX = "COACHWHIP_"
CONFIG = "config"
"""Name of the option that names a configuration file."""
OTHER_VARIABLES = (
    "CACHE_DIR",
    "KERNELS",
    "FUZZ_STEPS",
    "FULL_MATRIX",
    "SERVE_LOAD_SECONDS",
    "SERVE_EXAMPLES",
    "CHROMIUM",
    "BATCH_KILLS",
    "BATCH_LINES",
)
"""Variables of coachwhip that are no options: folders that hold for a machine, and what this
project's tests read."""
ENDPOINT_VARIABLES = (
    "HOST",
    "PORT",
    "API_KEY",
    "SERVED_MODEL_NAME",
    "MAX_QUEUE_SIZE",
    "REQUEST_TIMEOUT",
    "DRAIN_SECONDS",
    "MAX_BODY_BYTES",
    "LOG_FORMAT",
)
"""Variables of `coachwhip serve` alone."""

# In a pod, Kubernetes describes each service in variables of the service's name, and one may be
# called coachwhip.
_KUBERNETES = re.compile(r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_ADDRESS = re.compile(r"\w+://.*")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def environment_options(environ: Mapping[str, str]) -> dict[str, tuple[object, Origin]]:
    """Returns name -> (value, origin) of the options that are set; `config` may be among them.

    An empty variable counts as unset. A value that does not fit its option is returned as it is,
    for the options' own check to refuse.

    Args:
        environ: Environment variables.

    Raises:
        ConfigError: A variable with the prefix names no option, or two name the same one.
    """
    found = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or not text or _is_of_others(variable, text):
            continue
        name = variable.removeprefix(PREFIX).lower()
        name = ALIASES.get(name, name)
        known = [n for n, option in OPTIONS.items() if option.kind != "object"]
        if name not in known and name != CONFIG:
            names = (*known, *ALIASES, CONFIG, *ENDPOINT_VARIABLES, *OTHER_VARIABLES)
            variables = [PREFIX + n.upper() for n in names]
            raise unknown_option(variable, text, variables, "environment")
        value = text if name == CONFIG else from_text(OPTIONS[name], text)
        if name in found and found[name][0] != value:
            other = found[name][1].place
            raise ConfigError("twice", variable, text, f"the same as {other}", "unset one of them")
        found[name] = (value, Origin(variable, value))
    return found


def from_text(option: OptionInfo, text: str) -> object:
    """Returns the value that a text stands for; the text itself where it is no such value."""
    if option.kind == "switch":
        word = text.lower()
        if option.optional and word == "auto":
            return None
        return True if word in _TRUE else False if word in _FALSE else text
    if option.kind == "whole" and re.fullmatch(r"[+-]?\d{1,20}", text):
        return int(text)
    if option.kind == "json":
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _is_of_others(variable: str, text: str) -> bool:
    name = variable.removeprefix(PREFIX)
    if name in (*OTHER_VARIABLES, *ENDPOINT_VARIABLES) or _KUBERNETES.fullmatch(name):
        return True
    return name.endswith("PORT") and _ADDRESS.fullmatch(text) is not None
