"""The events of a streamed response, in the order and form of OpenAI's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from ..openai import Job
from ..outputs import RequestOutput
from .event_stream import DONE, event
from .running_job import RunningJob


@dataclass
class _Cursor:
    """How much of a text was sent."""

    characters: int = 0
    tokens: int = 0
    ended: bool = False


async def chunks(running: RunningJob) -> AsyncIterator[bytes]:
    """Yields the events of all texts as they grow, usage where it is wanted, and the last mark.

    Raises:
        CoachwhipError: A text cannot be finished.
    """
    job = running.job
    choices = [job.choice(i) for i in range(len(running.lives))]
    cursors = [_Cursor() for _ in choices]
    for choice in choices:
        opening = choice.opening()
        if opening is not None:
            yield _chunk(job, running, opening)
    while not all(cursor.ended for cursor in cursors):
        await running.grown()
        for choice, cursor, output in zip(choices, cursors, running.outputs, strict=True):
            new = _new(choice, cursor, output, bool(job.body.num_logprobs is not None))
            if new is not None:
                yield _chunk(job, running, new)
    options = job.body.stream_options
    if options is not None and options.include_usage:
        yield event(json.dumps(job.chunk([], job.usage(running.outputs))))
    yield DONE


def _new(choice, cursor: _Cursor, output: RequestOutput, with_logprobs: bool) -> dict | None:
    """Returns the choice of a text's next chunk, or None if there is nothing to say."""
    completion = output.outputs[0]
    text = completion.text[cursor.characters :]
    token_ids = completion.token_ids[cursor.tokens :]
    if cursor.ended or not (text or output.finished or (with_logprobs and token_ids)):
        return None
    logprobs = completion.logprobs[cursor.tokens :] if with_logprobs else None
    cursor.characters, cursor.tokens = len(completion.text), len(completion.token_ids)
    cursor.ended = output.finished
    reason = completion.finish_reason if output.finished else None
    return choice.chunk(text, token_ids, logprobs, reason)


def _chunk(job: Job, running: RunningJob, choice: dict) -> bytes:
    options = job.body.stream_options
    every = options is not None and options.continuous_usage_stats
    return event(json.dumps(job.chunk([choice], job.usage(running.outputs) if every else None)))
