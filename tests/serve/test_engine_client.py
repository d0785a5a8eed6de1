"""The engine's life as the HTTP side sees it, with a connection to no process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from coachwhip.openai import EngineRequest
from coachwhip.sampling.params import SamplingParams
from coachwhip.serve import engine_client
from coachwhip.serve.engine_client import MOST_QUICK, EngineClient, EngineState, GaveUp
from coachwhip.serve.engine_connection import EngineConnection
from coachwhip.serve.framing import frame
from coachwhip.serve.messages import Failed, Ready

METRICS = object()


class Connection:
    """Engines that each live for some seconds of a clock that it moves."""

    def __init__(self, client: EngineClient, seconds: list[float], monkeypatch) -> None:
        self._client, self.left, self._now = client, list(seconds), 0.0
        monkeypatch.setattr(engine_client.time, "monotonic", lambda: self._now)

    async def run(self, options: dict) -> int:
        assert self._client.metrics is None
        self._client._on_event(Ready(METRICS))
        self._now += self.left.pop(0)
        return -9

    def send(self, command) -> None:
        frame(command)


def test_only_quick_deaths_in_a_row_count(monkeypatch) -> None:
    client = EngineClient({}, print)
    quick = [1.0] * MOST_QUICK
    connection = Connection(client, [*quick[1:], 1000.0, *quick, 1.0], monkeypatch)
    client._connection = connection
    with pytest.raises(GaveUp, match=f"SIGKILL, {MOST_QUICK} times within 60 s"):
        asyncio.run(client.run())
    assert connection.left == [1.0]
    assert client.metrics is None  # those of an engine that has gone mislead


def test_a_request_that_cannot_be_sent_is_not_waited_for(monkeypatch) -> None:
    client = EngineClient({}, print)
    client._connection = Connection(client, [], monkeypatch)
    client.state = EngineState.READY
    params = SamplingParams(max_tokens=2**70)
    with pytest.raises(OverflowError):
        client.add("a", EngineRequest([1], params), asyncio.Event())
    assert client.num_unfinished == 0


def test_modules_of_the_folder_are_not_the_engines(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    events: list = []
    asyncio.run(EngineConnection(events.append).run({"model": str(tmp_path)}))
    (failed,) = events
    assert isinstance(failed, Failed) and str(tmp_path) in failed.message
