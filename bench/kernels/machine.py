"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.kernels.timing import Timing


def cpu_name() -> str:
    """Returns the CPU's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine(threads: int, empty_call: Timing) -> dict[str, Any]:
    """Returns the machine and the versions as JSON data.

    Args:
        threads: How many MAX runs.
        empty_call: What a call of a model costs that does nothing.
    """
    return {
        "cpu": cpu_name(),
        "threads": threads,
        "empty_call_us": asdict(empty_call),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "versions": {name: version(name) for name in ("max", "torch", "numpy")},
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
