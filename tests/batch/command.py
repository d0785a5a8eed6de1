"""`coachwhip batch` as a process of its own, which can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def start(source: Path | str, output: Path, *flags: str, **popen) -> subprocess.Popen:
    """Starts the command; its standard error can be read from the process."""
    return subprocess.Popen(
        [sys.executable, "-m", "coachwhip", "batch", str(source), str(output), *flags],
        stderr=subprocess.PIPE,
        text=True,
        **popen,
    )


def run(source: Path | str, output: Path, *flags: str, **popen) -> tuple[int, str]:
    """Runs the command to its end; returns exit code and standard error."""
    process = start(source, output, *flags, **popen)
    _, err = process.communicate()
    return process.returncode, err


def wait_for(condition: Callable[[], bool], process: subprocess.Popen) -> bool:
    """Waits until a condition holds; returns False when the process ends before."""
    while not condition():
        if process.poll() is not None:
            return False
        time.sleep(0.005)
    return True


def size(path: Path) -> int:
    return os.path.getsize(path) if path.exists() else 0
