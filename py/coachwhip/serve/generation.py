"""`/v1/completions` and `/v1/chat/completions`: a body in, a response or a stream out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ..openai import ApiError, Job, parse_body, translate
from .chunks import chunks
from .error_response import DEADLINE_EXCEEDED, api_error
from .event_stream import DONE, EventStream, disconnected, event
from .running_job import RunningJob
from .service import Service

LARGE_BODY = 64 * 1024
"""Bytes from which a body is translated on another thread: others go on meanwhile."""
SLOW_FIELDS = (b'"response_format"', b'"tools"')
"""What may become a grammar, whose compilation may take long: the same."""
UNREAD_S = 10.0
"""Seconds that a client has to read the last events after its deadline."""
_MOST_HEADER = 400


async def generate(request: Request, url: str) -> Response:
    """Answers a request to one of the two URLs.

    Args:
        request: The request.
        url: One of `coachwhip.openai.URLS`.

    Raises:
        ApiError: It is not served, and why.
        ClientDisconnect: The client has gone.
    """
    service: Service = request.app.state.service
    async with service.bodies.read(request) as raw:
        if len(raw) >= LARGE_BODY or any(field in raw for field in SLOW_FIELDS):
            job = await asyncio.to_thread(_translated, raw, url, service)
        else:
            job = _translated(raw, url, service)
        del raw
    limit = _time_limit(job, service.options.request_timeout)
    headers = _headers(job)
    running = service.start(job)

    def close() -> None:
        running.close()
        request.state.record.facts |= running.facts()

    if job.body.stream:
        return EventStream(_events(running, limit), close, headers, _patience(limit))
    try:
        body = await _whole(running, limit, request)
    finally:
        close()
    return JSONResponse(body, headers=headers)


def _translated(raw: bytes, url: str, service: Service) -> Job:
    return translate(parse_body(raw, url), service.frontend)


async def _whole(running: RunningJob, limit: float | None, request: Request) -> dict:
    """Returns the response body when all texts are complete."""

    async def finish() -> None:
        while not running.is_finished:
            await running.grown()

    finishing = asyncio.ensure_future(finish())
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait((finishing, leaving), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not finishing.done():
            finishing.cancel()
        await asyncio.gather(finishing, leaving, return_exceptions=True)
    if finishing.cancelled():
        if leaving.cancelled():
            raise _too_late(limit)
        raise ClientDisconnect
    finishing.result()
    return running.job.response(running.outputs)


async def _events(running: RunningJob, limit: float | None) -> AsyncIterator[bytes]:
    """Yields the events of a stream; what goes wrong is the last one but the mark of the end."""
    clock = asyncio.get_running_loop().time
    end = None if limit is None else clock() + limit
    stream = chunks(running)
    try:
        while True:
            try:
                async with asyncio.timeout_at(end):
                    data = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise _too_late(limit) from None
            yield data
    except Exception as error:
        yield event(json.dumps(api_error(error).body()))
        yield DONE


def _patience(limit: float | None) -> float | None:
    """Returns seconds after which a client that does not read is left, None for never."""
    return None if limit is None else limit + UNREAD_S


def _time_limit(job: Job, most: float | None) -> float | None:
    """Returns the seconds that a job may take, None for no limit."""
    wanted = job.body.timeout
    if wanted is not None and wanted <= 0:
        raise ApiError(
            400, f"timeout is {wanted}: give seconds above 0", param="timeout", code="invalid_value"
        )
    return min((seconds for seconds in (wanted, most) if seconds is not None), default=None)


def _too_late(limit: float) -> ApiError:
    return ApiError(
        408,
        f"the text was not finished within {limit:g} s; ask for fewer tokens or more time",
        type="timeout_error",
        code=DEADLINE_EXCEEDED,
    )


def _headers(job: Job) -> dict[str, str]:
    """Returns a header that names the fields that were not understood, if there are any."""
    ignored = job.body.ignored_fields
    if not ignored:
        return {}
    listed = json.dumps(", ".join(ignored))[1:-1]  # ASCII, and no control characters
    return {"X-Ignored-Fields": listed[:_MOST_HEADER].strip()}  # HTTP has no blanks around values
