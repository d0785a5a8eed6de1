"""Runs the endpoint: the socket, the engine, signals, and an end in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from ..errors import ConfigError
from ..openai import Frontend
from .app import make_app
from .engine_client import EngineClient, EngineState
from .http_protocol import MOST_HEADER_BYTES, HttpProtocol
from .request_record import JsonLines, TextLines
from .serve_options import LOOPBACKS, ServeOptions
from .service import Service

_log = logging.getLogger("coachwhip.serve")
CLOSE_S = 1.0
"""Seconds in which responses are completed once their texts have ended."""
INTERRUPTED = 130


class _Uvicorn(uvicorn.Server):
    """uvicorn without handlers for signals of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `serve`."""
        yield


def listen(options: ServeOptions) -> socket.socket:
    """Returns a listening socket.

    Raises:
        ConfigError: The address cannot be had.
    """
    host, port = options.address, options.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A server that ended a moment ago leaves connections behind that hold its port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(
            "address",
            "port" if error.errno in (13, 98, 48) else "host",
            port if error.errno in (13, 98, 48) else host,
            f"an address that this machine can listen on ({error.strerror})",
            "choose another --port or --host",
        ) from None
    return listener


async def serve(
    frontend: Frontend, engine_options: dict[str, object], options: ServeOptions
) -> int:
    """Serves until a signal says otherwise, and returns the exit code.

    SIGTERM and SIGINT end the server in good order: no new requests, `drain_seconds` for those that
    run, an error for what then is left. A second one does not wait.

    Args:
        frontend: The model.
        engine_options: Names of `EngineOptions` -> values.
        options: The endpoint's own options.

    Raises:
        ConfigError: The address cannot be had.
        GaveUp: No engine can be kept running.
    """
    _set_up_logs(options.log_format)
    listener = listen(options)
    if options.address not in LOOPBACKS and not options.api_keys:
        _log.warning(
            "whoever reaches %s can use this server; COACHWHIP_API_KEY lets only those in who have "
            "a key",
            options.address,
        )
    client = EngineClient(engine_options, _say)
    service = Service(frontend, client, options)
    server = _Uvicorn(
        uvicorn.Config(
            make_app(service),
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
            timeout_graceful_shutdown=CLOSE_S,
        )
    )
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    engine = asyncio.create_task(client.run())
    http = asyncio.create_task(server.serve(sockets=[listener]))
    greeting = asyncio.create_task(_greet(client, _url(listener), frontend.served_names[0]))
    asked = asyncio.create_task(signals.get())
    try:
        await asyncio.wait((engine, http, asked), return_when=asyncio.FIRST_COMPLETED)
        if engine.done():
            service.ending.set()
        else:
            await _drain(service, options.drain_seconds, signals)
        server.should_exit = True
        await http
        if engine.done():
            engine.result()
    finally:
        for task in (greeting, asked, engine, http):
            task.cancel()
        await asyncio.gather(greeting, asked, engine, http, return_exceptions=True)
    return INTERRUPTED if asked.result() == signal.SIGINT else 0


async def _drain(service: Service, seconds: float, signals: asyncio.Queue[int]) -> None:
    if service.num_jobs:
        _say(f"ending: {service.num_jobs} requests have up to {seconds:g} s left")
    draining = asyncio.create_task(service.drain(seconds))
    again = asyncio.create_task(signals.get())
    await asyncio.wait((draining, again), return_when=asyncio.FIRST_COMPLETED)
    draining.cancel()
    again.cancel()
    service.end_jobs()


async def _greet(client: EngineClient, url: str, model: str) -> None:
    while client.state is not EngineState.READY:
        client.changed.clear()
        await client.changed.wait()
    _say(f"serving {model} at {url}")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _say(line: str) -> None:
    _log.info(line)


def _set_up_logs(log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("coachwhip.serve").setLevel(logging.INFO)
