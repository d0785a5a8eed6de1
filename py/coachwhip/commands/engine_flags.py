"""The engine's options as command-line flags, shared by all commands that load a model."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from ..config.option_info import ALIASES, OPTIONS, OptionInfo
from ..config.speculation import METHODS


class _JsonObject(click.ParamType):
    """A JSON object on the command line."""

    name = "json"

    def convert(self, value, param, ctx):
        if isinstance(value, dict):
            return value
        try:
            found = json.loads(value)
        except ValueError as error:
            self.fail(f"{value!r} is no JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"{value!r} is no JSON object", param, ctx)
        return found


JSON_OBJECT = _JsonObject()
_TYPES = {"whole": int, "text": str, "memory": str, "json": JSON_OBJECT}
_METAVARS = {"memory": "BYTES|SHARE"}


def engine_flags(command: Callable) -> Callable:
    """Adds a flag for each option but `model`, under the same names, and `--config`.

    A flag that is not given is None, so that environment and file can have their say.
    """
    flags = [
        click.option(
            "--config",
            metavar="FILE",
            help="Options from a TOML or YAML file. Flags and COACHWHIP_... variables win over it.",
        )
    ]
    flags += [_flag(o) for o in OPTIONS.values() if o.name != "model" and o.kind != "object"]
    for flag in reversed(flags):
        command = flag(command)
    return command


def _flag(option: OptionInfo) -> Callable:
    names = [option.name, *(alias for alias, name in ALIASES.items() if name == option.name)]
    spellings = ["--" + name.replace("_", "-") for name in names]
    # What a method may be on a command line, where there are no objects.
    choices = [m for m in METHODS if m != "custom"] if option.name == "spec_method" else ()
    help_text = option.help
    if not option.optional and option.default != "auto":
        default = str(option.default).lower() if option.kind == "switch" else option.default
        help_text += f" Default: {default}."
    if option.kind == "switch":
        (name,) = (spelling.removeprefix("--") for spelling in spellings)
        return click.option(f"--{name}/--no-{name}", option.name, default=None, help=help_text)
    if option.choices or choices:
        kind = click.Choice(option.choices or choices)
    else:
        kind = _TYPES[option.kind]
    metavar = _METAVARS.get(option.kind)
    return click.option(*spellings, option.name, type=kind, metavar=metavar, help=help_text)
