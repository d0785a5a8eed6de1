"""Servers to measure: coachwhip with different options, and others that are running already."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

READY = re.compile(r"at http://127\.0\.0\.1:(\d+)")
START_S = 1200
"""Longest wait for a start: the first one compiles the model's graphs."""
SPECULATION = ("--spec-method", "mtp", "--spec-tokens", "3")


@dataclass(frozen=True)
class Measured:
    """A server to send requests to."""

    name: str
    host: str
    port: int
    model: str | None = None
    """What to name in requests; None leaves it out."""


def variants(has_head: bool) -> dict[str, tuple[str, ...]]:
    """Returns name -> flags of what is compared; the others are divided by the first one."""
    found = {f"cache {mode}": ("--mamba-cache-mode", mode) for mode in ("none", "align", "all")}
    if has_head:
        found |= {f"{name}, mtp": (*flags, *SPECULATION) for name, flags in found.items()}
    return found


@contextmanager
def running(
    variants: dict[str, tuple[str, ...]], model: str | None, flags: tuple[str, ...], logs: Path
) -> Iterator[list[Measured]]:
    """Starts a server for each variant, one after the other, and ends them all.

    Args:
        variants: Name -> flags.
        model: Folder of a checkpoint; None is the small model.
        flags: Flags of all of them.
        logs: Folder for what they print.
    """
    command = [sys.executable, "-m", "coachwhip", "serve", "--port", "0", *flags]
    ours = [] if model is None else [model]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    def one(more: tuple[str, ...], log: Path) -> AbstractContextManager[int]:
        def port() -> int | None:
            found = READY.search(log.read_text())
            return int(found[1]) if found else None

        return process_running([*command, *more, *ours], log, port, START_S, env)

    with each_running(variants, one, logs) as servers:
        yield servers


@contextmanager
def each_running(
    variants: dict[str, tuple[str, ...]],
    one: Callable[[tuple[str, ...], Path], AbstractContextManager[int]],
    logs: Path,
) -> Iterator[list[Measured]]:
    """Starts a server of any kind for each variant, one after the other, and ends them all.

    Args:
        variants: Name -> flags.
        one: Runs a server with these flags and this log, and yields its port.
        logs: Folder for what they print.
    """
    with ExitStack() as stack:
        yield [
            Measured(name, "127.0.0.1", stack.enter_context(one(flags, logs / f"{name}.log")))
            for name, flags in variants.items()
        ]


@contextmanager
def process_running(
    command: list[str],
    log: Path,
    port: Callable[[], int | None],
    start_s: float,
    env: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Starts a server's process, waits until it is ready, yields its port, and ends it.

    Args:
        command: Program and arguments.
        log: Gets what it prints.
        port: Returns its port once it is ready.
        start_s: Longest wait for that.
        env: Its environment; None is this process's.

    Raises:
        RuntimeError: It does not start; the log says why.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + start_s
        while (found := port()) is None:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{command[0]} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.wait()
