"""Starts the threads that the CPU kernels share their work with, once in a process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from max.engine import InferenceSession, Model

from coachwhip_graphs.team import team_graph

from .compiled import load_graph
from .locate import kernels_dir

MOST_MEMBERS = 255
"""Most threads beside the one that runs an op; the kernels have room for no more."""
CGROUPS = Path("/sys/fs/cgroup")
"""Where cgroups say how much CPU time their processes may use."""
OWN_CGROUPS = Path("/proc/self/cgroup")
"""Where the operating system says which cgroups this process is in."""

_lock = threading.Lock()
_model: Model | None = None


@dataclass(frozen=True)
class TeamFigures:
    """How the team fares."""

    members: int
    """Threads beside the one that runs an op."""
    shared_jobs: int
    """Pieces of work that at least one member took part in, since the process began."""


def quota_files(cgroups: Path = CGROUPS, own_cgroups: Path = OWN_CGROUPS) -> list[Path]:
    """Returns the files that may hold a quota of this process, in the two versions of cgroups.

    A container sees its own cgroup as the root; a service of the host is in one further down, and
    the quotas of all those above it count as well.

    Args:
        cgroups: The root of the cgroups.
        own_cgroups: The file with the process's cgroups, lines `number:controllers:path`.
    """
    files = [cgroups / "cpu.max", cgroups / "cpu" / "cpu.cfs_quota_us"]
    try:
        lines = [line.split(":", 2) for line in own_cgroups.read_text().splitlines()]
    except (OSError, ValueError):
        return files
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers and "cpu" not in controllers.split(","):
            continue
        root, name = (cgroups / "cpu", "cpu.cfs_quota_us") if controllers else (cgroups, "cpu.max")
        folders = [folder for folder in path.split("/") if folder]
        if ".." not in folders:  # else it lies outside of what this process sees
            files += [root.joinpath(*folders[: n + 1], name) for n in range(len(folders))]
    return files


def most_members(files: Iterable[Path] | None = None) -> int:
    """Returns how many threads may wait for work beside the one that runs an op.

    A process with a quota of CPU time has fewer than it sees CPUs: threads that look for work
    would use its quota up.

    Args:
        files: Where quotas are looked for, the smallest counts; `quota_files()` by default.
    """
    most = MOST_MEMBERS
    for file in quota_files() if files is None else files:
        try:
            quota, *period = file.read_text().split()
            if not period:
                period = [file.with_name("cpu.cfs_period_us").read_text()]
            share = int(quota) / int(period[0])  # "max" or -1 where there is none
        except (OSError, ValueError, ZeroDivisionError):
            continue
        if share > 0:
            most = max(0, min(int(share) - 1, most))
    return most


def start_team(
    session: InferenceSession, on_progress: Callable[[str], None] | None = None
) -> TeamFigures:
    """Starts the team unless it is there.

    Its graph stays loaded until the process ends, as members run its code.

    Args:
        session: A session on the CPU.
        on_progress: Gets lines while the graph compiles.

    Returns:
        How the team fares.

    Raises:
        ConfigError: The Mojo kernels are not found.
    """
    global _model
    with _lock:
        if _model is None:
            kernels = kernels_dir()
            _model = load_graph(
                session, "team", kernels, lambda: team_graph(kernels), {}, on_progress
            )
            # Never freed, not even when the interpreter ends: a member may be in its code.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(_model))
        figures = _model.execute(np.array([most_members()]))[0].to_numpy()
    return TeamFigures(*figures.tolist())
