"""Nothing is sent to MAX's maker: a session's reports, redirected to a local server, stay away."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from coachwhip.telemetry import SETTINGS, turn_off

_SESSION = """
from max.driver import CPU
from max.engine import InferenceSession
InferenceSession(devices=[CPU()])
"""


class Collector:
    """A server in the maker's place; `reports` counts what arrives."""

    def __init__(self) -> None:
        self.reports = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                collector.reports += 1
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reports_of(self, code: str, **extra: str) -> int:
        """Runs `code` in a new process without our settings, `extra` apart; counts its reports."""
        self.reports = 0
        clean = {k: v for k, v in os.environ.items() if k not in SETTINGS}
        url = f"http://127.0.0.1:{self.server.server_port}"
        clean["MODULAR_TELEMETRY_EXPORTERS_LOGS_HTTP_ENDPOINT"] = url
        subprocess.run([sys.executable, "-c", code], env=clean | extra, check=True, timeout=120)
        return self.reports


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()


def test_max_alone_reports(collector: Collector) -> None:
    """Without this, the next tests would pass when MAX no longer reads the redirection."""
    assert collector.reports_of(_SESSION) > 0


def test_coachwhip_is_silent(collector: Collector) -> None:
    assert collector.reports_of("import coachwhip.telemetry" + _SESSION) == 0


def test_empty_value_counts_as_unset(collector: Collector) -> None:
    code = "import coachwhip.telemetry" + _SESSION
    assert collector.reports_of(code, MODULAR_TELEMETRY_ENABLED="") == 0


def test_user_may_turn_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODULAR_TELEMETRY_ENABLED", "1")
    turn_off()
    assert os.environ["MODULAR_TELEMETRY_ENABLED"] == "1"


def test_off_in_this_test_run() -> None:
    assert all(os.environ.get(name) for name in SETTINGS)
