"""One engine process: how it is started, spoken to and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable

import msgspec

from .framing import LENGTH_BYTES, frame, payload_bytes
from .messages import Event, Start

_MODULE = f"{__package__}.engine_process"


class EngineConnection:
    """The process and the socket to it.

    Args:
        on_event: Called with each event.
    """

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._decoder = msgspec.msgpack.Decoder(Event)
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, options: dict[str, object]) -> int:
        """Starts an engine and hands on its events until its process has ended.

        The process ends with this call, however that ends.

        Args:
            options: Names of `EngineOptions` -> values.

        Returns:
            Its exit code; a negative one is a signal's number.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # modules come from where ours do, not from the folder that we run in
                "-m",
                _MODULE,
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        try:
            reader, self._writer = await asyncio.open_connection(sock=ours)
            self.send(Start(options))
            await self._read(reader)
            return await self._process.wait()
        finally:
            if self._writer is not None:
                self._writer.close()
            self._writer = None
            await self._end()

    @property
    def process_id(self) -> int | None:
        """Id of the running process."""
        return None if self._process is None else self._process.pid

    def send(self, command) -> None:
        """Sends a command; one to a process that has gone is dropped."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame(command))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header = await reader.readexactly(LENGTH_BYTES)
                data = await reader.readexactly(payload_bytes(header))
                self._on_event(self._decoder.decode(data))

    async def _end(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            # It has nothing to lose, and may be deep in a step or in loading a model.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
