"""Starts the threads that the CPU kernels share their work with, once in a process."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from max.engine import InferenceSession, Model

from coachwhip_graphs.team import team_graph

from .compiled import load_graph
from .locate import kernels_dir

MOST_MEMBERS = 63
"""Most threads beside the one that runs an op; the kernels have room for no more."""
LEAVE_S = 0.002
"""Seconds after the last op in which every member has surely left; they do after 0.2 ms."""

_lock = threading.Lock()
_model: Model | None = None


@dataclass(frozen=True)
class TeamFigures:
    """How the team fares."""

    members: int
    """Threads beside the one that runs an op."""
    shared_jobs: int
    """Pieces of work that at least one member took part in, since the process began."""


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
            # No member may be in the graph's code when the interpreter unloads it.
            atexit.register(time.sleep, LEAVE_S)
        figures = _model.execute(np.array([MOST_MEMBERS]))[0].to_numpy()
    return TeamFigures(*figures.tolist())
