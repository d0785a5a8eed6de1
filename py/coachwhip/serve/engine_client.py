"""The engine as the HTTP side sees it: requests in, growing outputs out, whatever happens to it."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import signal
import time
from collections.abc import Callable, Sequence

from ..cache.prefix_tree import TreeNode
from ..errors import EngineError, RequestError
from ..metrics import Metrics
from ..openai import EngineRequest
from .engine_connection import EngineConnection
from .live_output import LiveOutput
from .messages import (
    Abort,
    Add,
    Done,
    Event,
    Failed,
    Look,
    Ready,
    Refused,
    ResetCache,
    Seen,
    Updates,
)
from .token_rate import TokenRate

QUICK_S = 60.0
"""An engine that dies sooner than this after it was ready has failed quickly."""
MOST_QUICK = 3
"""Quick failures in a row after which no other engine is started."""
STALLED_S = 120.0
"""Seconds without a word from an engine that has work, after which it does not count as healthy."""


class EngineState(enum.Enum):
    """What the engine is doing."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class EngineGone(EngineError):
    """The engine's process has ended, and with it the requests that it had."""


class GaveUp(EngineError):
    """No engine runs, and no other one is started.

    Args:
        message: Why.
        exit_code: What the command line leaves with.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class EngineClient:
    """Starts the engine process, again when it dies, and speaks with it.

    Args:
        options: Names of `EngineOptions` -> values.
        on_message: Gets lines about the engine's life for the person who runs the server.
    """

    def __init__(self, options: dict[str, object], on_message: Callable[[str], None]) -> None:
        self._options, self._on_message = options, on_message
        self._connection = EngineConnection(self._on_event)
        self._live: dict[str, LiveOutput] = {}
        self._answers: dict[int, asyncio.Future] = {}
        self._numbers = itertools.count(1)
        self._failed: Failed | None = None
        self._ready_at: float | None = None
        self._heard_at = time.monotonic()
        self.state = EngineState.STARTING
        self.metrics: Metrics | None = None
        """The last that were seen of the engine that runs; None where none is ready."""
        self.num_restarts = 0
        self.token_rate = TokenRate()
        self.changed = asyncio.Event()
        """Set when `state` changes."""

    async def run(self) -> None:
        """Keeps an engine running until cancelled.

        Raises:
            GaveUp: The engine cannot be made, or dies again and again.
        """
        quick = 0
        try:
            while True:
                self._ready_at, self._failed = None, None
                code = await self._connection.run(self._options)
                reason = self._reason(code)
                lived = 0.0 if self._ready_at is None else time.monotonic() - self._ready_at
                quick = quick + 1 if lived < QUICK_S else 0
                self._fail_all(
                    EngineGone(f"{reason} while this request was running; send it again")
                )
                if self._failed is not None and not (self.num_restarts or lived):
                    raise GaveUp(self._failed.message, self._failed.exit_code)
                if quick >= MOST_QUICK:
                    raise GaveUp(
                        f"{reason}, {quick} times within {QUICK_S:.0f} s of its start; it is not "
                        "started again",
                        1,
                    )
                self._enter(EngineState.RESTARTING)
                self.num_restarts += 1
                self._on_message(f"{reason}; starting another one")
        finally:
            self._enter(EngineState.STOPPED)
            self._fail_all(EngineGone("the server is shutting down; send the request again"))

    def add(self, request_id: str, request: EngineRequest, changed: asyncio.Event) -> LiveOutput:
        """Queues a request.

        Args:
            request_id: An id that no unfinished request has.
            request: What to generate.
            changed: Set whenever the output grows or ends.

        Returns:
            Its output, which grows.

        Raises:
            EngineGone: No engine is ready.
        """
        if self.state is not EngineState.READY:
            raise EngineGone(f"the engine is {self.state.value}; send the request again")
        if not self._live:
            self._heard_at = time.monotonic()
        live = LiveOutput(request_id, request, changed)
        self._connection.send(
            Add(
                request_id,
                request.prompt_token_ids,
                request.params,
                request.priority,
                request.cache_salt,
            )
        )
        self._live[request_id] = live
        return live

    def abort(self, lives: Sequence[LiveOutput]) -> None:
        """Ends requests at once; those that have ended are left alone."""
        ids = [live.output.request_id for live in lives]
        ids = [request_id for request_id in ids if self._live.pop(request_id, None) is not None]
        if ids:
            self._connection.send(Abort(ids))

    @property
    def num_unfinished(self) -> int:
        """Requests that run or wait."""
        return len(self._live)

    @property
    def is_stalled(self) -> bool:
        """Whether the engine has work, but has not been heard of for long."""
        return bool(self._live) and time.monotonic() - self._heard_at > STALLED_S

    @property
    def process_id(self) -> int | None:
        """Id of the engine's process."""
        return self._connection.process_id

    async def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes.

        Raises:
            EngineGone: No engine is ready.
        """
        await self._ask(ResetCache)

    async def look(
        self, tree_nodes: int = 0, timeout_s: float = 1.0
    ) -> tuple[Metrics | None, list[TreeNode]]:
        """Returns the engine's metrics and up to `tree_nodes` nodes of its prefix tree.

        They are the last known ones, and no nodes, where the engine does not answer in time: it
        does so between two steps. Without an engine there are none.
        """
        tree: list[TreeNode] = []
        with contextlib.suppress(TimeoutError, EngineGone):
            async with asyncio.timeout(timeout_s):
                tree = (await self._ask(Look, tree_nodes)).tree
        return self.metrics, tree

    async def _ask(self, command: type, *arguments) -> Done | Seen:
        if self.state is not EngineState.READY:
            raise EngineGone(f"the engine is {self.state.value}; send the request again")
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._connection.send(command(number, *arguments))
        try:
            return await answer
        finally:
            del self._answers[number]

    def _on_event(self, event: Event) -> None:
        self._heard_at = time.monotonic()
        if isinstance(event, Updates):
            for update in event.updates:
                live = self._live.get(update.request_id)
                self.token_rate.add(len(update.token_ids))
                if live is None:
                    continue  # aborted meanwhile
                if update.finish_reason is not None:
                    del self._live[update.request_id]
                live.take(update)
        elif isinstance(event, Refused):
            live = self._live.pop(event.request_id, None)
            if live is not None:
                live.fail(RequestError(event.field, event.got, event.message))
        elif isinstance(event, (Done, Seen)):
            if isinstance(event, Seen):
                self.metrics = event.metrics
            answer = self._answers.get(event.number)
            if answer is not None and not answer.done():
                answer.set_result(event)
        elif isinstance(event, Ready):
            self.metrics, self._ready_at = event.metrics, time.monotonic()
            self._enter(EngineState.READY)
            if self.num_restarts:
                self._on_message("the engine is ready again")
        else:
            self._failed = event

    def _enter(self, state: EngineState) -> None:
        self.state = state
        self.changed.set()

    def _fail_all(self, error: EngineGone) -> None:
        if self.state is EngineState.READY:
            self.state = EngineState.RESTARTING
        self.metrics = None
        for live in self._live.values():
            live.fail(error)
        self._live.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)

    def _reason(self, code: int) -> str:
        if self._failed is not None:
            return f"the engine failed: {self._failed.message}"
        if code < 0:
            return f"the engine's process was ended by {_signal_name(-code)}"
        return f"the engine's process ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
