"""Runs the requests of a batch: the engine is kept full, and what ends is stored at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ..engine import Engine
from ..outputs import RequestOutput
from .counts import BatchCounts
from .ledger import Finished, Ledger
from .window import BatchRequest, Window


@dataclass
class _Live:
    """A text that the engine is writing."""

    request: BatchRequest
    choice: int
    window: Window
    place: int
    output: RequestOutput
    begun: bool = False


class BatchRun:
    """One run of a batch.

    Args:
        engine: The engine, with no other requests.
        windows: The requests, a stretch at a time; taken in a thread of its own, so that
            tokenizing goes on beside the steps.
        ledger: Where finished lines go.
        counts: What is counted.
        max_inflight: Most texts in the engine at a time.
        stopping: Says whether to start nothing more.
        on_change: Called when lines were stored.
    """

    def __init__(
        self,
        engine: Engine,
        windows: Iterator[Window],
        ledger: Ledger,
        counts: BatchCounts,
        max_inflight: int,
        stopping: Callable[[], bool] = lambda: False,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine, self._windows, self._ledger = engine, windows, ledger
        self._counts, self._max_inflight = counts, max_inflight
        self._stopping, self._on_change = stopping, on_change
        self._live: dict[str, _Live] = {}
        self._window: Window | None = None
        self._number = 0
        self._next: Future | None = None

    def run(self) -> None:
        """Runs until all is stored, or until `stopping` and what was begun is stored.

        Raises:
            StorageError: A line cannot be stored; those before are.
            EngineError: A step failed; what it ran is not stored, and is run again by the next
                run.
        """
        with ThreadPoolExecutor(1, "batch-window") as pool:
            self._next = pool.submit(next, self._windows, None)
            try:
                while not self._stopping():
                    self._fill(pool)
                    if not self._live:
                        break
                    self._step()
                while self._live:
                    self._step()
            except Exception:
                for request_id in list(self._live):
                    self._engine.abort(request_id)
                raise

    def _fill(self, pool: ThreadPoolExecutor) -> None:
        """Starts as many texts as there is room for, unless they had better wait."""
        while len(self._live) < self._max_inflight and not self._stopping():
            if self._window is None or not self._window.order:
                # With texts under way, a window that is not ready is no reason to wait.
                if self._live and not self._next.done():
                    return
                self._window = self._next.result()
                if self._window is None:
                    return
                self._next = pool.submit(next, self._windows, None)
                self._store(self._window.refused)
                continue
            place = self._window.order.next()
            if place is None:
                return
            self._start(self._window, place)

    def _start(self, window: Window, place: int) -> None:
        request, choice = window.texts[place]
        wanted = request.job.requests[choice]
        request_id = str(self._number)
        self._number += 1
        output = self._engine.add_request(
            request_id,
            wanted.prompt_token_ids,
            wanted.params,
            wanted.prompt,
            priority=wanted.priority,
            cache_salt=wanted.cache_salt,
        )
        self._live[request_id] = _Live(request, choice, window, place, output)

    def _step(self) -> None:
        stored = []
        for output in self._engine.step():
            live = self._live[output.request_id]
            if not live.begun:
                live.begun = True
                live.window.order.computed(live.place)
            if output.finished:
                del self._live[output.request_id]
                self._counts.add(output)
                live.request.outputs[live.choice] = output
                if (line := live.request.finished()) is not None:
                    stored.append(line)
        self._store(stored)

    def _store(self, lines: list[Finished]) -> None:
        if lines:
            failed = self._ledger.num_failed
            self._ledger.append(lines)
            self._counts.done += len(lines)
            self._counts.failed += self._ledger.num_failed - failed
            self._on_change()
