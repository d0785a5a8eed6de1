"""Fixtures: the checkout, its three package files as data, and a shell as a user has it."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def checkout() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def pyproject(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def pixi(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pixi.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def shell(checkout: Path) -> Callable[..., str]:
    """Runs a command line in the checkout, this interpreter's programs first; returns its output.

    What a surrounding make hands down is left out, or a make below it would take it as its own.
    """
    handed_down = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "ARGS", "PYTHON"}
    environment = {k: v for k, v in os.environ.items() if k not in handed_down}
    programs = str(Path(sys.executable).parent)
    environment["PATH"] = programs + os.pathsep + environment.get("PATH", os.defpath)

    def run(command: str, **extra: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=checkout,
            env=environment | extra,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    return run
