"""HTTP/1.1 as uvicorn speaks it with h11, which bounds what headers may take, with JSON errors."""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..openai import ApiError

MOST_HEADER_BYTES = 32 * 1024
"""Most bytes of a request's first line and headers together."""
LONGEST_HEADER_S = 60.0
"""Seconds without the whole head of a request after which a connection is closed; it may take up to
twice as long."""


class HttpProtocol(H11Protocol):
    """Answers what is no HTTP request, or has endless headers, with an error in OpenAI's form.

    Connections on which no request comes are closed: others need their descriptors.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begins to watch the connection."""
        super().connection_made(transport)
        self._looked_at: object = self
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the watch."""
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        waits = self.conn.their_state is h11.IDLE
        if waits and self._looked_at is self.cycle:
            self.transport.close()  # no request has come since the last look
            return
        self._looked_at = self.cycle if waits else self
        self._next_look = self.loop.call_later(LONGEST_HEADER_S, self._look)

    def send_400_response(self, msg: str) -> None:
        """Sends the error and closes the connection.

        Args:
            msg: What uvicorn says about it.
        """
        error = ApiError(
            400,
            f"{msg} Its headers may take {MOST_HEADER_BYTES} bytes.",
            code="invalid_http_request",
        )
        body = json.dumps(error.body()).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        try:
            parts = (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(self.conn.send(part) for part in parts))
        except h11.LocalProtocolError:
            pass  # a response has begun already
        self.transport.close()
