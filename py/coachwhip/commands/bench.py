"""`coachwhip bench`: numbers with rooflines, from the benchmarks of a checkout."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

from ..errors import MISSING, ConfigError

_CHECKOUT = Path(__file__).resolve().parents[3]


@click.group()
def bench() -> None:
    """Measure kernels beside their rooflines and peers."""


@bench.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kernels(arguments: tuple[str, ...]) -> None:
    """Measure one kernel or all (`--help` lists them); same as `python -m bench.kernels`."""
    _find_benchmarks()
    from bench.kernels.__main__ import main

    main(list(arguments) or ["all"])


def _find_benchmarks() -> None:
    """Makes `bench` importable from the current folder or the checkout of this package.

    Raises:
        ConfigError: Neither has one; benchmarks and their peers are not part of the package.
    """
    if importlib.util.find_spec("bench") is not None:
        return
    for folder in (Path.cwd(), _CHECKOUT):
        if (folder / "bench" / "kernels" / "__main__.py").is_file():
            sys.path.insert(0, str(folder))
            return
    raise ConfigError(
        "no_benchmarks",
        "bench/kernels",
        MISSING,
        "in the current folder",
        "run this from a checkout of coachwhip; benchmarks are not part of the installed package",
    )
