"""Connections on which nothing comes, and those that are at work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import uvicorn

from coachwhip.serve import http_protocol
from coachwhip.serve.http_protocol import HttpProtocol

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"
PERIOD_S = 0.2


async def slow_app(scope, receive, send) -> None:
    """Answers after several periods."""
    await asyncio.sleep(5 * PERIOD_S)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def served(monkeypatch, client: Callable[[int], Awaitable[bytes]]) -> bytes:
    """Returns what a client gets, which is given the port."""
    monkeypatch.setattr(http_protocol, "LONGEST_HEADER_S", PERIOD_S)

    async def both() -> bytes:
        config = uvicorn.Config(
            slow_app, port=0, http=HttpProtocol, ws="none", lifespan="off", log_config=None
        )
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        try:
            return await client(server.servers[0].sockets[0].getsockname()[1])
        finally:
            await server.shutdown()

    return asyncio.run(asyncio.wait_for(both(), 30))


def test_a_head_that_does_not_end_is_not_waited_for(monkeypatch) -> None:
    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        found = await reader.read()
        writer.close()
        return found

    assert served(monkeypatch, client) == b""


def test_a_response_that_takes_long_is_waited_for(monkeypatch) -> None:
    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found = b""
        for _ in range(2):
            writer.write(HEAD + b"\r\n")
            found += await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return found

    assert served(monkeypatch, client).count(b"204 No Content") == 2
