"""The events of a streamed response, in the order and form of OpenAI's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
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
    has_prompt: bool = False
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
            for new in _new(choice, cursor, output):
                yield _chunk(job, running, new)
    options = job.body.stream_options
    if options is not None and options.include_usage:
        yield event(json.dumps(job.chunk([], job.usage(running.outputs))))
    yield DONE


def _new(choice, cursor: _Cursor, output: RequestOutput) -> Iterator[dict]:
    """Yields the choices of a text's next chunks, none if there is nothing to say."""
    if cursor.ended:
        return
    scores, completion = output.prompt_logprobs, output.outputs[0]
    if scores is not None and not cursor.has_prompt:
        if len(scores) < len(output.prompt_token_ids):
            return  # the prompt comes first, as a whole
        cursor.has_prompt = True
        yield choice.prompt(output)
    text = completion.text[cursor.characters :]
    token_ids = completion.token_ids[cursor.tokens :]
    logprobs = completion.logprobs
    if not (text or output.finished or (logprobs is not None and token_ids)):
        return
    new = None if logprobs is None else logprobs[cursor.tokens :]
    cursor.characters, cursor.tokens = len(completion.text), len(completion.token_ids)
    cursor.ended = output.finished
    found = choice.chunk(
        text, token_ids, new, completion.finish_reason if output.finished else None
    )
    # A delta is empty while it is open what a piece of text is: a call, say.
    if found.get("delta") != {} or found["logprobs"] or found["finish_reason"]:
        yield found


def _chunk(job: Job, running: RunningJob, choice: dict) -> bytes:
    options = job.body.stream_options
    every = options is not None and options.continuous_usage_stats
    return event(json.dumps(job.chunk([choice], job.usage(running.outputs) if every else None)))
