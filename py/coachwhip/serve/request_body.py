"""Reads bodies of requests: each up to a limit, all together up to another, none for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from ..openai import ApiError
from .error_response import RETRY_S, Unavailable

DISCARDED = 16
"""Times the limit that is still read, and dropped, of a body that is too long: a client that is
still sending does not see a response."""
TOGETHER = 16
"""Times the limit that all bodies which are read at a time may take."""
LONGEST_S = 120.0
"""Seconds in which a body must have come."""


class BodyReader:
    """Reads bodies.

    Args:
        limit: Most bytes of a body.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._held = limit, 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Reads a whole body, which is to be dropped at the end of the block.

        Raises:
            ApiError: 413 for a longer body, of which no more than the limit is kept, 408 for one
                that does not come, 429 where others take all the memory that there is for them.
            ClientDisconnect: The client has gone.
        """
        held = 0

        def hold(count: int) -> None:
            nonlocal held
            if self._held + count > TOGETHER * self._limit:
                raise Unavailable(
                    429,
                    "the bodies of other requests take all memory that there is for them; try "
                    "again later",
                    "too_many_bodies",
                    RETRY_S,
                    type="rate_limit_error",
                )
            held += count
            self._held += count

        try:
            async with asyncio.timeout(LONGEST_S):
                body = await self._read(request, hold)
            yield body
        except TimeoutError:
            raise ApiError(
                408, f"the body did not come within {LONGEST_S:g} s", code="body_timeout"
            ) from None
        finally:
            self._held -= held

    async def _read(self, request: Request, hold: Callable[[int], None]) -> bytes:
        limit = self._limit
        length = request.headers.get("content-length", "")
        expects = request.headers.get("expect", "").lower() == "100-continue"
        if length.isdigit() and int(length) > limit:
            if not expects:  # who expects to be told sends nothing before it is
                await _discard(request.receive, DISCARDED * limit)
            raise _too_long(int(length), limit)
        body = bytearray()
        while True:
            piece, more = await _piece(request.receive)
            if len(body) + len(piece) > limit:
                del body
                if more:
                    await _discard(request.receive, DISCARDED * limit)
                raise _too_long(None, limit)
            hold(len(piece))
            body += piece
            if not more:
                return bytes(body)


async def _discard(receive: Callable[[], Awaitable], most: int) -> None:
    left, more = most, True
    while more and left > 0:
        piece, more = await _piece(receive)
        left -= len(piece)


async def _piece(receive: Callable[[], Awaitable]) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


def _too_long(length: int | None, limit: int) -> ApiError:
    got = "longer" if length is None else f"{length} bytes"
    return ApiError(
        413,
        f"the body is {got}, but at most {limit} bytes are read; shorten it, or start the server "
        "with a larger --max-body-bytes",
        code="request_too_large",
    )
