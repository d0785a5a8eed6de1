"""What the benchmarks need beyond coachwhip itself."""

from __future__ import annotations

from importlib.util import find_spec

import click


def require(*packages: str) -> None:
    """Checks that packages of the `bench` extra are installed.

    Raises:
        click.ClickException: One is not.
    """
    for package in packages:
        if not find_spec(package):
            raise click.ClickException(
                f"{package} is not installed; install it with: pip install 'coachwhip[bench]'"
            )
