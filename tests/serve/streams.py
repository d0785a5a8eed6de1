"""Many streaming clients at a time, as plain sockets in one event loop."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass, field


@dataclass
class Streamed:
    """What came of a stream."""

    status: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    """Text of each choice."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why each choice ended."""
    error: dict | None = None
    is_complete: bool = False
    """Whether the mark of the end came."""

    @property
    def text(self) -> str:
        """Text of the only choice."""
        return self.texts.get(0, "")

    def take(self, data: str) -> None:
        """Adds the data of an event."""
        if data == "[DONE]":
            self.is_complete = True
            return
        chunk = json.loads(data)
        self.error = chunk.get("error", self.error)
        for choice in chunk.get("choices", ()):
            index, delta = choice["index"], choice.get("delta", choice)
            new = delta.get("content", delta.get("text")) or ""
            self.texts[index] = self.texts.get(index, "") + new
            if choice["finish_reason"]:
                self.reasons[index] = choice["finish_reason"]


async def open_request(
    port: int,
    path: str,
    body: dict,
    *,
    receive_bytes: int | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends a request and returns the reader and writer of its connection.

    Args:
        port: The server's.
        path: Of the request.
        body: Of the request.
        receive_bytes: Size of the socket's and the reader's buffers; None leaves it.
        headers: Further headers.
    """
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=receive_bytes or 1 << 20)
    data = json.dumps(body).encode()
    more = {"Host": "localhost", "Content-Length": str(len(data)), **(headers or {})}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in more.items())]
    head = "\r\n".join([*lines, "", ""])
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


async def stream(
    port: int,
    path: str,
    body: dict,
    *,
    leave_after: int | None = None,
    headers: dict[str, str] | None = None,
) -> Streamed:
    """Returns what a streaming request brings.

    Args:
        port: The server's.
        path: Of the request.
        body: Of the request; `stream` is added.
        leave_after: Events after which the client goes; None stays.
        headers: Further headers.
    """
    found = Streamed()
    reader, writer = await open_request(port, path, body | {"stream": True}, headers=headers)
    try:
        line = await reader.readline()
        found.status = int(line.split()[1])
        events = 0
        while leave_after is None or events < leave_after:
            line = await reader.readline()
            if not line:
                break
            if line.startswith(b"data: "):
                found.take(line[6:].decode().strip())
                events += 1
            if found.is_complete or found.status != 200:
                break
    finally:
        writer.close()
    return found
