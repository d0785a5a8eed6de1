"""The commands behind `pixi run` and `make`: the same, and each of them starts.

Starting means `--help` here: the work itself is what the other tests, and the benchmarks, do.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_PIXI = tomllib.loads((Path(__file__).resolve().parents[2] / "pixi.toml").read_text("utf-8"))
_TASKS: dict[str, Any] = _PIXI["tasks"] | {
    name: task
    for feature in _PIXI["feature"].values()
    for name, task in feature.get("tasks", {}).items()
}


def commands_of(name: str) -> list[str]:
    """Returns the commands of a pixi task in the order they run, those it depends on first."""
    task = _TASKS[name]
    before = [command for other in task.get("depends-on", []) for command in commands_of(other)]
    return before + (task["cmd"].split(" && ") if "cmd" in task else [])


_COMMANDS = sorted({command for name in _TASKS for command in commands_of(name)})


@pytest.mark.parametrize("name", _TASKS)
def test_make_runs_what_pixi_runs(name: str, shell: Callable[..., str]) -> None:
    # -n prints the commands; -o takes a stamp as up to date, so that nothing is installed.
    stamps = " ".join(f"-o .venv/.installed-{which}" for which in ("run", "test", "bench"))
    printed = shell(f"make --no-print-directory -n {stamps} {name}").splitlines()
    assert [line.replace(".venv/bin/", "").strip() for line in printed] == commands_of(name)


@pytest.mark.parametrize("command", _COMMANDS)
def test_command_starts(command: str, shell: Callable[..., str]) -> None:
    in_checkout = {"PYTHONPATH": "py:graphs"}  # as pixi.toml's [activation.env]
    assert "usage" in shell(f"{command} --help", **in_checkout).lower()


def test_ci_runs_make_test(checkout: Path) -> None:
    script = checkout / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text("utf-8").splitlines()[-1] == "make test"
