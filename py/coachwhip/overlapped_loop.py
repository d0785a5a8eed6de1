"""The overlapped loop: while a step runs, the outputs of the one before are completed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Event

from .errors import EngineError
from .runner import StepOutput
from .step_loop import Flight, StepLoop


class OverlappedLoop(StepLoop):
    """Launches step n + 1 before it completes the outputs of step n.

    A step runs on a thread of its own, in which the graph leaves Python's lock to others. Meanwhile
    texts and log probabilities of the step before are made, and the caller works with them. Only
    what the next plan depends on lies between two steps; so all that is planned, computed and
    published is the same as in the simple loop.

    Between two calls a step may be under way. Requests can be added and aborted, and the cache
    reset, as if it ran already; whoever needs it done calls `land`. No step is under way when no
    request is left.

    Args:
        worker: One thread, which may be shared with loops that have no requests.
        parts: As of `StepLoop`.
    """

    def __init__(self, worker: ThreadPoolExecutor, *parts) -> None:
        super().__init__(*parts)
        self._worker = worker
        self._flight: tuple[Flight, Future[StepOutput]] | None = None

    def land(self) -> None:
        try:
            self._land_flight()
        finally:
            self._complete()

    def end(self, request_id: str, reason: str, error: str | None = None) -> None:
        super().end(request_id, reason, error)
        if not self.live:
            with suppress(EngineError):  # of a step whose requests are all gone
                self.land()

    def _advance(self) -> None:
        """Waits for one step, unless outputs of another are not handed out yet; starts the next."""
        if not self._grown:
            self._launch()
            self._land_flight()
        self._launch()

    def _land_flight(self) -> None:
        if self._flight is not None:
            self._land(self._flight[0])

    def _launch(self) -> None:
        """Starts the next step, unless one is under way or there is none."""
        if self._flight is not None:
            return
        flight = self._plan()
        if flight is None:
            return
        launched = Event()
        self._flight = flight, self._worker.submit(self._run, flight, launched)
        # Until the graph runs, the worker needs Python's lock, which this thread would rather keep.
        launched.wait()

    def _run(self, flight: Flight, launched: Event) -> StepOutput:
        try:
            return self.runner.execute(flight.plan, flight.sampled, launched.set)
        finally:
            launched.set()

    def _execute(self, flight: Flight) -> StepOutput:
        _, future = self._flight
        self._flight = None
        try:
            return future.result()
        except BaseException:
            wait((future,))  # the step must not run on while its slots change hands
            raise
