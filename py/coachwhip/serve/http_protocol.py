"""HTTP/1.1 as uvicorn speaks it with h11, which bounds what headers may take, with JSON errors."""

from __future__ import annotations

import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..openai import ApiError

MOST_HEADER_BYTES = 32 * 1024
"""Most bytes of a request's first line and headers together."""


class HttpProtocol(H11Protocol):
    """Answers what is no HTTP request, or has endless headers, with an error in OpenAI's form."""

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
