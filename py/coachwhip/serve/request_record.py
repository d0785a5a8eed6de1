"""Names each request, and logs it in one line when it has ended."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from dataclasses import dataclass, field

_log = logging.getLogger("coachwhip.serve.requests")
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_LONGEST_PATH = 200
_QUIET = frozenset(("/health", "/metrics", "/status", "/page.css", "/page.js"))
"""Paths that are asked for all the time; their success is logged for debugging only."""


@dataclass
class RequestRecord:
    """What is known of one request, for its line in the log."""

    request_id: str
    method: str
    path: str
    begin_s: float = field(default_factory=time.monotonic)
    status: int | None = None
    """Of the response; None where the client had gone before there was one."""
    facts: dict[str, object] = field(default_factory=dict)
    """Further values: tokens, times, how it ended."""

    def values(self) -> dict[str, object]:
        """Returns all values by name."""
        return {
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "request_id": self.request_id,
            **self.facts,
            "seconds": round(time.monotonic() - self.begin_s, 4),
        }


class RequestLog:
    """ASGI middleware: an id for each request, in `X-Request-Id`, and a line in the log.

    A sensible id that the client sends is kept.
    """

    def __init__(self, app) -> None:
        self._app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(
            _request_id(scope["headers"]), scope["method"], scope["path"][:_LONGEST_PATH]
        )
        scope["state"]["record"] = record

        async def named_send(message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                header = (b"x-request-id", record.request_id.encode())
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        try:
            await self._app(scope, receive, named_send)
        finally:
            quiet = record.path in _QUIET and record.status == 200
            _log.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"record": record})


class TextLines(logging.Formatter):
    """Log lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns a line, and a traceback after it where there is one."""
        request = getattr(record, "record", None)
        if request is None:
            level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
            line = f"coachwhip: {level}{record.getMessage()}"
            if record.exc_info:
                line += "\n" + self.formatException(record.exc_info)
            return line
        values = request.values()
        method, path, status = (values.pop(name) for name in ("method", "path", "status"))
        rest = " ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        return f"coachwhip: {method} {path!a} {status or 'gone'} {rest}"


class JsonLines(logging.Formatter):
    """Log lines for machines: one JSON object each."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line."""
        request = getattr(record, "record", None)
        values = {"time": round(record.created, 3), "level": record.levelname.lower()}
        if request is None:
            values |= {"logger": record.name, "message": record.getMessage()}
            if record.exc_info:
                values["traceback"] = self.formatException(record.exc_info)
        else:
            values |= {"message": "request", **request.values()}
        return json.dumps(values)


def _request_id(headers: list[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name == b"x-request-id" and _GIVEN_ID.fullmatch(value):
            return value.decode()
    return uuid.uuid4().hex
