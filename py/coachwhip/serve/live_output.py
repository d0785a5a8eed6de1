"""The output of a request on this side of the connection, and waiting for it to grow."""

from __future__ import annotations

import asyncio
import time

from ..errors import EngineError
from ..openai import EngineRequest
from ..outputs import CompletionOutput, RequestOutput
from .messages import Update


class LiveOutput:
    """Grows by updates; whoever reads it takes what is new since it last looked.

    So a reader that is slow skips steps, never tokens, and what is kept for it is the text itself,
    once.

    Args:
        request_id: The request's id in the engine.
        request: What was asked for.
        changed: Set when this output grows or ends; several outputs may share one.
    """

    def __init__(self, request_id: str, request: EngineRequest, changed: asyncio.Event) -> None:
        logprobs = None if request.params.logprobs is None else []
        self.output = RequestOutput(
            request_id,
            request.prompt,
            request.prompt_token_ids,
            [CompletionOutput(0, "", [], logprobs=logprobs)],
            finished=False,
            prompt_logprobs=None if request.params.prompt_logprobs is None else [],
        )
        self.failure: Exception | None = None
        """Why nothing more will come, where that is not the end of the text."""
        self.added_s = time.monotonic()
        self.token_times = TokenTimes(self.added_s)
        self._changed = changed

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.output.finished or self.failure is not None

    def take(self, update: Update) -> None:
        """Adds what is new."""
        output, completion = self.output, self.output.outputs[0]
        if update.token_ids:
            self.token_times.tokens(len(update.token_ids))
        completion.text += update.text
        completion.token_ids += update.token_ids
        if completion.logprobs is not None:
            completion.logprobs += update.logprobs or ()
        if output.prompt_logprobs is not None:
            output.prompt_logprobs += update.prompt_logprobs or ()
        output.num_cached_tokens = update.num_cached_tokens
        output.num_drafted_tokens = update.num_drafted_tokens
        output.num_accepted_tokens = update.num_accepted_tokens
        if update.finish_reason is not None:
            completion.finish_reason = update.finish_reason
            completion.stop_reason = update.stop_reason
            output.metrics, output.error = update.metrics, update.error
            output.finished = True
            if update.error is not None:
                self.failure = EngineError(update.error)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Ends the request for a reason outside of it."""
        if not self.is_over:
            self.failure = error
            self._changed.set()


class TokenTimes:
    """When the tokens of a text came: what its reader waited for the first, and between others.

    Args:
        begin: Time of the request, on the monotonic clock.
    """

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self.first_s: float | None = None
        """Seconds to the first token."""
        self.first_counted = False
        """Whether `first_s` was counted."""
        self.last_s: float = begin
        self.gaps: list[tuple[float, int]] = []
        """(seconds per token, tokens) of what came since this list was emptied."""

    def tokens(self, count: int) -> None:
        """Notes that tokens came."""
        now = time.monotonic()
        if self.first_s is None:
            self.first_s = now - self._begin
            count -= 1
        if count:
            self.gaps.append(((now - self.last_s) / count, count))
        self.last_s = now
