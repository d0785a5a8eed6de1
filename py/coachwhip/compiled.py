"""Compiles a graph once and keeps the artifact, so that the next start takes seconds.

MAX caches compiled kernels itself, but a graph must still be traced and its cache entry found,
several seconds each time. Here the compiled artifact is stored under a key over all that it depends
on; weights are not in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from max import engine
from max.engine import InferenceSession
from max.graph import Graph

import coachwhip_graphs

_log = logging.getLogger(__name__)

CACHE_ENV = "COACHWHIP_CACHE_DIR"
"""Folder of compiled graphs; unset is `coachwhip` in the user's cache folder, empty keeps none."""


def load_graph(
    session: InferenceSession,
    key: str,
    kernels: Path,
    build: Callable[[], Graph],
    weights: dict,
    on_progress: Callable[[str], None] | None = None,
):
    """Returns the executable model of a graph with its weights bound.

    Args:
        session: The session that will run it.
        key: Everything that decides the graph, the device included, but for the sources of
            kernels and graphs, versions and the CPU, which are added here.
        kernels: Folder of the Mojo sources.
        build: Traces the graph; called only when no artifact is stored.
        weights: Registry name -> value.
        on_progress: Gets a line now and then while the graph compiles.
    """
    path = _artifact_path(key, kernels)
    if path is not None and path.exists():
        try:
            return _bind(session, engine.read(path), weights)
        except Exception as error:
            # A stored artifact is a convenience: one that cannot be read is made again.
            _log.warning("compiled graph %s cannot be used (%s); compiling it again", path, error)
    with _progress(on_progress):
        compiled = session.compile(build())
    if path is not None:
        _store(compiled, path)
    return _bind(session, compiled, weights)


def _bind(session: InferenceSession, compiled, weights: dict):
    models = session.init_all(compiled, weights_registry=weights)
    (model,) = models.values() if isinstance(models, dict) else models
    return model


def _artifact_path(key: str, kernels: Path) -> Path | None:
    folder = os.environ.get(CACHE_ENV)
    if folder is None:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(root) / "coachwhip"
    elif not folder:
        return None
    digest = hashlib.sha256()
    for part in (key, version("max"), version("mojo"), platform.machine(), _cpu_features()):
        digest.update(part.encode() + b"\0")
    graphs = Path(coachwhip_graphs.__file__).parent
    for source in (*sorted(kernels.glob("*.mojo")), *sorted(graphs.glob("*.py"))):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return Path(folder) / f"{digest.hexdigest()[:32]}.mef"


def _cpu_features() -> str:
    """Returns what the compiler may have used of this CPU."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()


def _store(compiled, path: Path) -> None:
    """Writes the artifact beside its place and renames it, so that no reader sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            new = Path(folder) / path.name
            compiled.export_mef(str(new))
            os.replace(new, path)
    except (OSError, RuntimeError, ValueError) as error:
        _log.warning("compiled graph is not kept in %s: %s", path.parent, error)


@contextlib.contextmanager
def _progress(on_progress: Callable[[str], None] | None) -> Iterator[None]:
    """Reports the time spent every few seconds until the block ends."""
    if on_progress is None:
        yield
        return
    done = threading.Event()
    start = time.monotonic()

    def report() -> None:
        on_progress("compiling the model's graph (once; half a minute to minutes)")
        while not done.wait(5):
            on_progress(f"compiling the model's graph: {time.monotonic() - start:.0f} s")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        on_progress("")


def progress_to_stderr(line: str) -> None:
    """Prints a progress line, in place on a terminal; an empty line clears it there."""
    if sys.stderr.isatty():
        shown = f"coachwhip: {line}" if line else ""
        print(f"\r\x1b[2K{shown}", end="", file=sys.stderr, flush=True)
    elif line:
        print(f"coachwhip: {line}", file=sys.stderr, flush=True)
