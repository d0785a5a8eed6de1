"""The endpoint's own options as flags and variables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import click

from ..config.environment import ENDPOINT_VARIABLES, PREFIX
from ..errors import ConfigError
from ..serve.serve_options import ServeOptions

_ADDRESS = re.compile(r"\w+://.*")
_FLAGS = (
    click.option("--host", help="Address to listen on. Default: 127.0.0.1, or 0.0.0.0 with a key."),
    click.option("--port", type=int, help="Port to listen on, 0 for a free one. Default: 8000."),
    click.option(
        "--api-key",
        "api_keys",
        multiple=True,
        metavar="KEY",
        help="Let only requests with this key in; repeat it for several. Others see the arguments "
        "of a process, so COACHWHIP_API_KEY is the better place (several with commas).",
    ),
    click.option(
        "--served-model-name",
        "served_model_names",
        multiple=True,
        metavar="NAME",
        help="Name of the model in requests and responses; repeat it for several. Default: MODEL.",
    ),
    click.option(
        "--max-queue-size", type=int, help="Most requests that wait; others get 429. Default: 512."
    ),
    click.option(
        "--request-timeout", type=float, metavar="SECONDS", help="Most time of a request."
    ),
    click.option(
        "--drain-seconds",
        type=float,
        help="Time that running requests have left after SIGTERM or Ctrl-C. Default: 30.",
    ),
    click.option(
        "--max-body-bytes", type=int, help="Most bytes of a request's body. Default: 16777216."
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        help="Lines of the log on standard error. Default: text.",
    ),
)
_LISTS = {"API_KEY": "api_keys", "SERVED_MODEL_NAME": "served_model_names"}
_NUMBERS = {
    "PORT": int,
    "MAX_QUEUE_SIZE": int,
    "MAX_BODY_BYTES": int,
    "REQUEST_TIMEOUT": float,
    "DRAIN_SECONDS": float,
}


def serve_flags(command: Callable) -> Callable:
    """Adds the flags; one that is not given is None or empty, so that variables have their say."""
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


def take_serve_options(flags: dict[str, object]) -> ServeOptions:
    """Takes the endpoint's options out of a command's flags, and adds those of the environment.

    Raises:
        ConfigError: A value is out of its range.
    """
    values: dict[str, object] = {}
    for variable in ENDPOINT_VARIABLES:
        name = _LISTS.get(variable, variable.lower())
        given = flags.pop(name)
        if given not in (None, ()):
            values[name] = given
            continue
        text = os.environ.get(PREFIX + variable, "")
        # In a pod, COACHWHIP_PORT may be Kubernetes' address of a service of that name.
        if text and not (variable == "PORT" and _ADDRESS.fullmatch(text)):
            values[name] = _value(variable, text)
    return ServeOptions(**values)


def _value(variable: str, text: str) -> object:
    if variable in _LISTS:
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        if not parts:  # no key must not mean no lock
            raise ConfigError("value", PREFIX + variable, text, "one or several", "correct it")
        return parts
    kind = _NUMBERS.get(variable, str)
    try:
        value = kind(text)
    except ValueError:
        allowed = "a whole number" if kind is int else "a number"
        raise ConfigError("value", PREFIX + variable, text, allowed, "correct it") from None
    if variable == "LOG_FORMAT" and value not in ("text", "json"):
        raise ConfigError("value", PREFIX + variable, text, "text or json", "correct it")
    return value
