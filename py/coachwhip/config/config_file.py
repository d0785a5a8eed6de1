"""Reads options from a TOML or YAML file."""

from __future__ import annotations

import re
import tomllib
from os import PathLike
from pathlib import Path

from ..errors import ConfigError
from .invalid import unknown_option
from .option_info import ALIASES, OPTIONS
from .origins import Origin

_FIELD = "config"
_AUTO = "auto"


def file_options(path: str | PathLike[str]) -> dict[str, tuple[object, Origin]]:
    """Returns name -> (value, origin) of the options in a file.

    Keys are names of options, with underscores or dashes; in a switch `auto`, and everywhere null,
    stands for unset. The suffix decides the format: .toml, .yaml or .yml.

    Raises:
        ConfigError: The file cannot be read, is malformed, names an option twice, or names one that
            does not exist.
    """
    file = Path(path).expanduser()
    reader = {".toml": _read_toml, ".yaml": _read_yaml, ".yml": _read_yaml}.get(file.suffix.lower())
    if reader is None:
        raise _error(file, "a file whose name ends in .toml, .yaml or .yml", "rename it")
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _error(file, f"a file that can be read ({reason})", "correct the path") from None
    found: dict[str, tuple[object, Origin]] = {}
    for key, (value, line) in reader(file, text).items():
        place = f"{file}, line {line}"
        name = key.replace("-", "_")
        name = ALIASES.get(name, name)
        known = [n for n, option in OPTIONS.items() if option.kind != "object"]
        if name not in known:
            raise unknown_option(key, value, [*known, *ALIASES], place)
        if name in found:
            raise ConfigError(
                "twice", key, value, f"given once; {found[name][1].place} has it", "drop one", place
            )
        if OPTIONS[name].kind == "switch" and OPTIONS[name].optional and value == _AUTO:
            value = None
        found[name] = (value, Origin(place, value))
    return {name: pair for name, pair in found.items() if pair[0] is not None}


def _read_toml(file: Path, text: str) -> dict[str, tuple[object, int]]:
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _error(file, f"TOML: {error}", "correct it") from None
    lines = text.splitlines()
    return {key: (value, _toml_line(lines, key)) for key, value in values.items()}


def _toml_line(lines: list[str], key: str) -> int:
    """Returns the first line that sets a key of the top level; 1 if it is spelled unusually."""
    begins = re.compile(rf"""\s*\[?\s*["']?{re.escape(key)}["']?\s*[=.\]]""")
    for number, line in enumerate(lines, 1):
        if begins.match(line):
            try:
                before = tomllib.loads("\n".join(lines[: number - 1]))
            except tomllib.TOMLDecodeError:
                continue  # inside of a text or a list
            if key not in before:
                return number
    return 1


def _read_yaml(file: Path, text: str) -> dict[str, tuple[object, int]]:
    import yaml  # for those who write YAML

    found: dict[str, tuple[object, int]] = {}
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is not None and not isinstance(root, yaml.MappingNode):
            raise _error(file, "a mapping of options", "write `name: value` lines")
        for key_node, value_node in () if root is None else root.value:
            key, line = loader.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            value = loader.construct_object(value_node, deep=True)
            place = f"{file}, line {line}"
            if not isinstance(key, str):
                raise unknown_option(str(key), value, OPTIONS, place)
            if key in found:
                told = f"given once; line {found[key][1]} has it"
                raise ConfigError("twice", key, value, told, "drop one", place)
            found[key] = (value, line)
    except ConfigError:
        raise
    except Exception as error:  # PyYAML's own kinds, and what its constructors meet in odd values
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise _error(file, f"YAML: {problem}{where}", "correct it") from None
    return found


def _error(file: Path, allowed: str, fix: str) -> ConfigError:
    return ConfigError("config_file", _FIELD, str(file), allowed, fix)
