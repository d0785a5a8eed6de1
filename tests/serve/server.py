"""A `coachwhip serve` of its own process, as a user starts it, and plain HTTP to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

READY = re.compile(r"serving (\S+) at http://127\.0\.0\.1:(\d+)")
START_S = 400
"""Longest wait for a start: the first one compiles the model's graphs."""


class Server:
    """A running server.

    Args:
        log: File that gets its standard error.
        arguments: Those of `coachwhip serve`; the port is a free one unless they name it.
        environment: Further variables.
    """

    def __init__(self, log: Path, *arguments: str, environment: dict[str, str] | None = None):
        self.log = log
        port = () if "--port" in arguments else ("--port", "0")
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "coachwhip", "serve", *port, *arguments],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
            )
        found = self.wait_for_line(READY)
        self.model, self.port = found[1], int(found[2])
        self.url = f"http://127.0.0.1:{self.port}"

    def wait_for_line(self, pattern: re.Pattern[str], seconds: float = START_S) -> re.Match[str]:
        """Returns the first match in the log, once it is there."""
        end = time.monotonic() + seconds
        while (found := pattern.search(self.log.read_text())) is None:
            assert self.process.poll() is None, f"the server has ended:\n{self.log.read_text()}"
            assert time.monotonic() < end, f"no {pattern.pattern} in:\n{self.log.read_text()}"
            time.sleep(0.02)
        return found

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Returns status, headers (names in lower case) and body of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()
        finally:
            connection.close()

    def get(self, path: str) -> dict:
        """Returns the JSON body of a response that must be 200."""
        status, _, body = self.request("GET", path)
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str, body: object) -> dict:
        """Returns the JSON body of a response that must be 200."""
        status, _, data = self.request("POST", path, body)
        assert status == 200, data
        return json.loads(data)

    def engine(self) -> psutil.Process:
        """Returns the engine's process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def wait_until_idle(self, seconds: float = 30) -> dict:
        """Returns the status once nothing runs or waits, which must come to pass."""
        end = time.monotonic() + seconds
        while True:
            found = self.get("/status")
            if not found["requests"]["running"] and not found["requests"]["waiting"]:
                return found
            assert time.monotonic() < end, found
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGTERM, seconds: float = 60) -> int:
        """Signals the server and returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Ends the server, if it still runs; its engine ends by itself."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
