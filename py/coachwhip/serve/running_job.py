"""A job in the engine: its outputs as they grow, its deadline, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..openai import Job
from ..outputs import RequestOutput
from .engine_client import EngineClient
from .live_output import LiveOutput
from .request_metrics import RequestMetrics


class RunningJob:
    """The texts of one body while they are generated; to be closed however it ends.

    Args:
        job: What is asked for.
        client: The engine.
        metrics: Where the job's times are counted.
        on_close: Called with this object when it is closed.
    """

    def __init__(
        self,
        job: Job,
        client: EngineClient,
        metrics: RequestMetrics,
        on_close: Callable[[RunningJob], None],
    ) -> None:
        self.job = job
        self._client, self._metrics, self._on_close = client, metrics, on_close
        self._changed = asyncio.Event()
        self.lives = [
            client.add(f"{job.id}-{i}", request, self._changed)
            for i, request in enumerate(job.requests)
        ]

    @property
    def outputs(self) -> list[RequestOutput]:
        """The texts as they are now."""
        return [live.output for live in self.lives]

    @property
    def is_finished(self) -> bool:
        """Whether all texts are complete."""
        return all(live.output.finished for live in self.lives)

    async def grown(self) -> None:
        """Waits until at least one text has grown or ended.

        Raises:
            CoachwhipError: One cannot be finished; the message says why.
        """
        await self._changed.wait()
        self._changed.clear()
        for live in self.lives:
            self._metrics.take_times(live.token_times)
        for live in self.lives:
            if live.failure is not None:
                raise live.failure

    def fail(self, error: Exception) -> None:
        """Ends all texts that are not complete."""
        unfinished = [live for live in self.lives if not live.is_over]
        self._client.abort(unfinished)
        for live in unfinished:
            live.fail(error)

    def close(self) -> None:
        """Ends what still runs, at once, and counts how each text ended."""
        self._client.abort(self.lives)
        for live in self.lives:
            self._metrics.ended(live)
        self._on_close(self)

    def facts(self) -> dict[str, object]:
        """Returns what the log says about the job."""
        first = min((t for t in map(_first_token_s, self.lives) if t is not None), default=None)
        usage = self.job.usage(self.outputs)
        return {
            "model": self.job.model,
            "texts": len(self.lives),
            "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "completion_tokens": usage["completion_tokens"],
            "first_token_s": first and round(first, 4),
            "finish": ",".join(sorted({_end(live) for live in self.lives})),
        }


def _first_token_s(live: LiveOutput) -> float | None:
    return live.token_times.first_s


def _end(live: LiveOutput) -> str:
    if live.output.finished:
        return live.output.outputs[0].finish_reason
    return "abort" if live.failure is None else "error"
