"""What all routes share: the model, the engine, the limits, and whether the server is ending."""

from __future__ import annotations

import asyncio
import math
import time

from ..openai import ApiError, Frontend, Job
from .engine_client import EngineClient, EngineGone, EngineState
from .engine_metrics import EngineCollector
from .error_response import RETRY_S, Unavailable
from .request_body import BodyReader
from .request_metrics import RequestMetrics
from .running_job import RunningJob
from .serve_options import ServeOptions

LONGEST_RETRY_S = 60


class Service:
    """Admits jobs to the engine.

    Args:
        frontend: The model.
        client: The engine.
        options: The endpoint's own options.
    """

    def __init__(self, frontend: Frontend, client: EngineClient, options: ServeOptions) -> None:
        self.frontend, self.client, self.options = frontend, client, options
        self.bodies = BodyReader(options.max_body_bytes)
        self.created = int(time.time())
        """Seconds since 1970."""
        self.metrics = RequestMetrics(frontend.served_names[0])
        self.metrics.registry.register(
            EngineCollector(client, frontend.config, frontend.served_names[0])
        )
        self.ending: asyncio.Event = asyncio.Event()
        """Set when no further requests are taken."""
        self._jobs: set[RunningJob] = set()

    def start(self, job: Job) -> RunningJob:
        """Gives a job to the engine.

        Raises:
            ApiError: 503 while no engine is ready or the server is ending, 429 when too many
                requests wait, 400 for a job that is larger than the queue.
        """
        if self.ending.is_set():
            raise Unavailable(
                503, "the server is shutting down; send the request again", "shutting_down", RETRY_S
            )
        if self.client.state is not EngineState.READY:
            raise Unavailable(
                503,
                f"the engine is {self.client.state.value}; send the request again",
                "engine_unavailable",
                RETRY_S,
            )
        self._check_queue(len(job.requests))
        running = RunningJob(job, self.client, self.metrics, self._jobs.discard)
        self._jobs.add(running)
        return running

    @property
    def num_jobs(self) -> int:
        """Jobs that run or wait."""
        return len(self._jobs)

    def health(self) -> str | None:
        """Returns why no step can run, or None if one can."""
        if self.ending.is_set():
            return "the server is shutting down"
        if self.client.state is not EngineState.READY:
            return f"the engine is {self.client.state.value}"
        if self.client.is_stalled:
            return "the engine does not answer"
        return None

    async def drain(self, seconds: float) -> None:
        """Takes no further jobs, and waits up to `seconds` for those that run; ends the rest."""
        self.ending.set()
        end = asyncio.get_running_loop().time() + seconds
        while self._jobs and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        self.end_jobs()

    def end_jobs(self) -> None:
        """Ends all jobs with an error that says why."""
        error = EngineGone("the server is shutting down and ended this text; send it again")
        for job in list(self._jobs):
            job.fail(error)

    def _check_queue(self, count: int) -> None:
        running = self.frontend.config.max_num_seqs
        room = running + self.options.max_queue_size
        if count > room:
            raise ApiError(
                400,
                f"the body asks for {count} texts, but at most {room} can run and wait; ask for "
                "fewer at a time",
                param="n",
                code="too_many_texts",
            )
        unfinished = self.client.num_unfinished
        if unfinished + count > room:
            raise Unavailable(
                429,
                f"{unfinished} texts run or wait already, of at most {room}, and the body asks for "
                f"{count}; try again later",
                "queue_full",
                self._retry_s(),
                type="rate_limit_error",
            )

    def _retry_s(self) -> int:
        """Returns about how long the requests that wait will take."""
        rounds = self.client.num_unfinished / self.frontend.config.max_num_seqs
        return max(1, min(LONGEST_RETRY_S, math.ceil(rounds * self.metrics.mean_seconds)))
