"""Reads a request's body, up to a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request

from ..openai import ApiError

DISCARDED = 16
"""Times the limit that is still read, and dropped, of a body that is too long: a client that is
still sending does not see a response."""


async def read_body(request: Request, limit: int) -> bytes:
    """Returns the whole body.

    Args:
        request: The request.
        limit: Most bytes of a body.

    Raises:
        ApiError: 413 for a longer body, of which no more than the limit is kept.
        ClientDisconnect: The client has gone.
    """
    length = request.headers.get("content-length", "")
    expects = request.headers.get("expect", "").lower() == "100-continue"
    if length.isdigit() and int(length) > limit:
        if not expects:  # who expects to be told sends nothing before it is
            await _discard(request.receive, DISCARDED * limit)
        raise _too_long(int(length), limit)
    body = bytearray()
    while True:
        piece, more = await _piece(request.receive)
        body += piece
        if len(body) > limit:
            del body
            if more:
                await _discard(request.receive, DISCARDED * limit)
            raise _too_long(None, limit)
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
