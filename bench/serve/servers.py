"""Servers to measure: coachwhip with different options, and others that are running already."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    with ExitStack() as stack:
        yield [
            Measured(name, "127.0.0.1", stack.enter_context(_one(model, (*flags, *more), log)))
            for number, (name, more) in enumerate(variants.items())
            for log in [logs / f"{number}.log"]
        ]


@contextmanager
def _one(model: str | None, flags: tuple[str, ...], log: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "coachwhip", "serve", "--port", "0", *flags]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *([] if model is None else [model])],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=file,
        )
    try:
        end = time.monotonic() + START_S
        while (found := READY.search(log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()
