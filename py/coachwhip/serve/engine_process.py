"""The engine in a process of its own: `python -m coachwhip.serve.engine_process DESCRIPTOR`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from ..errors import CheckpointError, CoachwhipError, ConfigError, RequestError, shown
from .deltas import OutputDeltas
from .engine_link import EngineLink, PeerGone
from .messages import Abort, Add, Done, Failed, Look, Ready, Refused, ResetCache, Seen, Updates

USER_FAULT, RUN_FAULT = 2, 1
MOST_FRUITLESS = 3
"""Failed steps that ended no request, after which the process gives up."""


class EngineServer:
    """Runs an engine's steps and, between them, what the other side asks for.

    Args:
        engine: The engine.
        link: The connection.
    """

    def __init__(self, engine, link: EngineLink) -> None:
        self._engine, self._link = engine, link
        self._deltas: dict[str, OutputDeltas] = {}
        self._fruitless = 0
        self._changed: dict[str, None] = {}  # requests with something to send, in order

    def run(self) -> None:
        """Serves until the other side is gone.

        Raises:
            PeerGone: It is.
        """
        engine, link = self._engine, self._link
        while True:
            can_send = self._changed and link.is_clear
            for command in link.receive(wait=not engine.has_unfinished and not can_send):
                self._carry_out(command)
            if engine.has_unfinished:
                self._step()
            link.flush()
            if link.is_clear and (self._changed or engine.has_unfinished):
                self._send_updates()  # empty ones too: they say that the engine works

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:
            # The requests of the step have ended with this error; those that wait go on.
            outputs = [d.output for d in self._deltas.values() if d.output.finished]
            self._fruitless = 0 if outputs else self._fruitless + 1
            if self._fruitless == MOST_FRUITLESS:
                raise
            print(f"coachwhip: a step failed: {_said(error)}", file=sys.stderr, flush=True)
        for output in outputs:
            if output.request_id in self._deltas:
                self._changed[output.request_id] = None

    def _send_updates(self) -> None:
        updates = []
        for request_id in self._changed:
            deltas = self._deltas.get(request_id)
            if deltas is None:
                continue  # aborted meanwhile
            updates.append(deltas.take())
            if deltas.output.finished:
                del self._deltas[request_id]
        self._changed.clear()
        self._link.send(Updates(updates))

    def _carry_out(self, command) -> None:
        engine = self._engine
        if isinstance(command, Add):
            self._add(command)
        elif isinstance(command, Abort):
            for request_id in command.request_ids:
                engine.abort(request_id)
                self._deltas.pop(request_id, None)
        elif isinstance(command, ResetCache):
            engine.reset_prefix_cache()
            self._link.send(Done(command.number))
        elif isinstance(command, Look):
            if self._changed:
                self._send_updates()  # what is seen must not be ahead of what is told
            tree = engine.scheduler.cache.tree.nodes(command.tree_nodes)
            self._link.send(Seen(command.number, engine.metrics(), tree))

    def _add(self, command: Add) -> None:
        try:
            output = self._engine.add_request(
                command.request_id,
                command.prompt_token_ids,
                command.params,
                priority=command.priority,
                cache_salt=command.cache_salt,
            )
        except RequestError as error:
            self._link.send(
                Refused(command.request_id, error.field, shown(error.got), error.message)
            )
            return
        self._deltas[command.request_id] = OutputDeltas(output, command.params.stop)


def main() -> None:
    """Takes the descriptor of a socket as argument, makes the engine, and serves."""
    # A terminal and a service manager signal all processes; when to end is for the HTTP side to
    # say, which ends this one by closing the connection.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    link = EngineLink(connection)
    try:
        (start,) = link.receive(wait=True)
        connection.setblocking(True)
        _end_with(connection)
        engine = _engine(start.options)
        connection.setblocking(False)
        link.send(Ready(engine.metrics()))
        EngineServer(engine, link).run()
    except PeerGone:
        pass
    except Exception as error:
        user_fault = isinstance(error, (ConfigError, CheckpointError, RequestError))
        link.send(Failed(_said(error), USER_FAULT if user_fault else RUN_FAULT))
        if not isinstance(error, CoachwhipError):
            raise
        sys.exit(USER_FAULT if user_fault else RUN_FAULT)


def _engine(options: dict[str, object]):
    from ..compiled import progress_to_stderr
    from ..config import EngineOptions
    from ..engine import Engine

    loading = False

    def warn(line: str) -> None:
        if loading:  # what came before was said by the HTTP side
            print(f"coachwhip: warning: {line}", file=sys.stderr, flush=True)

    def before_load(engine: Engine) -> None:
        nonlocal loading
        loading = True

    return Engine(EngineOptions(**options), progress_to_stderr, warn, before_load)


def _end_with(connection: socket.socket) -> None:
    """Ends this process when the other side goes while the model loads, which may take long."""

    def watch() -> None:
        try:
            if connection.recv(1, socket.MSG_PEEK):
                return  # a command: the engine is loaded, and notices the end by itself
        except OSError:
            pass
        os._exit(RUN_FAULT)

    threading.Thread(target=watch, daemon=True).start()


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, CoachwhipError) else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
