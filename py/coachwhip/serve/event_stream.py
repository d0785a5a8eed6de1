"""A response of server-sent events that notices at once when its client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response

DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends events as they come.

    A client that reads slowly stops this response only: the events are made when it takes them.

    Args:
        events: The events, each complete with its blank line.
        on_close: Called when the response has ended, however it did.
        headers: Further headers.
        most_s: Seconds after which the connection is closed, whatever is left; None is never.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        on_close: Callable[[], None],
        headers: dict[str, str] | None = None,
        most_s: float | None = None,
    ) -> None:
        # Proxies must neither keep nor gather the events.
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.headers.update(headers or {})
        self._events, self._on_close, self._most_s = events, on_close, most_s

    async def __call__(self, scope, receive, send) -> None:
        """Sends the response, until its end or the client's."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait(
                (sending, leaving), timeout=self._most_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            self._on_close()
        if not sending.cancelled() and sending.exception() is not None:
            raise sending.exception()

    async def _send(self, send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        finally:
            await self._events.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def disconnected(receive) -> None:
    """Returns when the client has gone; its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def event(data: str) -> bytes:
    """Returns one event with a line of data."""
    return f"data: {data}\n\n".encode()
