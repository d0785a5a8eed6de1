"""Starts the threads that the CPU kernels share their work with, once in a process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from max.engine import InferenceSession, Model

from coachwhip_graphs.team import team_graph

from .compiled import load_graph
from .locate import kernels_dir

MOST_MEMBERS = 255
"""Most threads beside the one that runs an op; the kernels have room for no more."""
QUOTA_FILES = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
"""Where a container says how much CPU time it may use, in the two versions of cgroups."""

_lock = threading.Lock()
_model: Model | None = None


@dataclass(frozen=True)
class TeamFigures:
    """How the team fares."""

    members: int
    """Threads beside the one that runs an op."""
    shared_jobs: int
    """Pieces of work that at least one member took part in, since the process began."""


def most_members(quota_files: tuple[Path, ...] = QUOTA_FILES) -> int:
    """Returns how many threads may wait for work beside the one that runs an op.

    A container with a quota of CPU time has fewer than it sees CPUs: threads that look for work
    would use its quota up.

    Args:
        quota_files: Where quotas are looked for; the first that names one counts.
    """
    for file in quota_files:
        try:
            quota, *period = file.read_text().split()
            if not period:
                period = [file.with_name("cpu.cfs_period_us").read_text()]
            share = int(quota) / int(period[0])  # "max" or -1 where there is none
        except (OSError, ValueError, ZeroDivisionError):
            continue
        if share > 0:
            return max(0, min(int(share) - 1, MOST_MEMBERS))
    return MOST_MEMBERS


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
