"""The engine process's end of the connection: one socket, and no call that waits for its reader."""

from __future__ import annotations

import select
import socket

from .framing import Unframer, frame
from .messages import Command

_PIECE = 1 << 18


class PeerGone(Exception):
    """The other side has closed the connection."""


class EngineLink:
    """Takes commands and sends events, between steps of the engine.

    Nothing here waits while the engine has work: what the socket does not take at once stays, and
    while it stays, updates of a request are merged into one, so that a reader that stands still
    costs no more memory than the texts themselves.

    Args:
        connection: A connected stream socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._unframer = Unframer(Command)
        self._unsent = bytearray()

    @property
    def is_clear(self) -> bool:
        """Whether everything that was sent has left."""
        return not self._unsent

    def receive(self, wait: bool) -> list:
        """Returns the commands that have come, maybe none.

        Args:
            wait: Wait for a command, or for room to send what is left to send.

        Raises:
            PeerGone: The HTTP side is gone.
        """
        commands = self._read()
        if wait and not commands:
            select.select([self._socket], [self._socket] if self._unsent else [], [])
            self.flush()
            commands = self._read()
        return commands

    def send(self, event) -> None:
        """Sends an event, after those before it."""
        self._unsent += frame(event)
        self.flush()

    def flush(self) -> None:
        """Sends as much as the socket takes."""
        while self._unsent:
            try:
                sent = self._socket.send(memoryview(self._unsent)[:_PIECE].tobytes())
            except BlockingIOError:
                return
            except OSError:
                raise PeerGone from None
            del self._unsent[:sent]

    def _read(self) -> list:
        commands: list = []
        while True:
            try:
                data = self._socket.recv(_PIECE)
            except BlockingIOError:
                return commands
            except OSError:
                raise PeerGone from None
            if not data:
                raise PeerGone
            commands += self._unframer.feed(data)
