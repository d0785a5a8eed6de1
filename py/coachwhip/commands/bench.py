"""`coachwhip bench`: the benchmarks of a checkout."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click

from ..errors import MISSING, ConfigError

_CHECKOUT = Path(__file__).resolve().parents[3]


@click.group()
def bench() -> None:
    """Measure kernels beside their rooflines and peers, or engines with and without their cache."""


def _command(name: str, summary: str, default: tuple[str, ...] = ()) -> click.Command:
    """Makes a command that hands all its arguments to `python -m bench.NAME`.

    Args:
        name: Package below `bench`.
        summary: The command's line in the list of commands.
        default: Arguments when none are given.
    """

    @click.command(
        name,
        help=f"{summary}; same as `python -m bench.{name}`.",
        short_help=summary,
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        _find_benchmarks()
        main = import_module(f"bench.{name}.__main__").main
        main(list(arguments or default), prog_name=f"coachwhip bench {name}")

    return command


bench.add_command(_command("kernels", "Measure one kernel or all", ("all",)))
bench.add_command(_command("engine", "Measure what the cache saves and the host costs"))
bench.add_command(_command("serve", "Measure what clients of an endpoint wait for"))
bench.add_command(_command("batch", "Measure a batch whose requests share prefixes"))


def _find_benchmarks() -> None:
    """Makes `bench` importable from the current folder or the checkout of this package.

    Raises:
        ConfigError: Neither has one; benchmarks and their peers are not part of the package.
    """
    if find_spec("bench") is not None:
        return
    for folder in (Path.cwd(), _CHECKOUT):
        if (folder / "bench" / "kernels" / "__main__.py").is_file():
            sys.path.insert(0, str(folder))
            return
    raise ConfigError(
        "no_benchmarks",
        "bench",
        MISSING,
        "in the current folder",
        "run this from a checkout of coachwhip; benchmarks are not part of the installed package",
    )
