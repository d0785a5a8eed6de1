"""How the server starts and ends, and what happens when its engine dies."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import psutil

from coachwhip.serve.engine_client import MOST_QUICK
from tests.serve.conftest import POOLS
from tests.serve.server import Server
from tests.serve.streams import stream

PATH = "/v1/completions"
LONG = {"prompt": "The state of", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


async def with_streams(server: Server, count: int, then, max_tokens: int = 400) -> list:
    """Returns what streams bring when `then()` is called once each has begun."""
    body = LONG | {"max_tokens": max_tokens}
    tasks = [asyncio.create_task(stream(server.port, PATH, body)) for _ in range(count)]
    while server.get("/status")["requests"]["running"] < count:
        await asyncio.sleep(0.01)
    then()
    return await asyncio.gather(*tasks)


def test_sigterm_lets_streams_finish_and_the_next_start_works(start) -> None:
    server = start(*POOLS)
    whole = server.post(PATH, LONG)["choices"][0]["text"]

    refusals = []

    def end() -> None:
        server.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 5
        while (health := server.request("GET", "/health"))[0] == 200:
            assert time.monotonic() < end
        refusals.append((health[0], *server.request("POST", PATH, LONG)))

    streams = asyncio.run(with_streams(server, 3, end))
    assert [s.text for s in streams] == [whole] * 3
    assert all(s.is_complete and s.error is None for s in streams)
    ((health, status, headers, body),) = refusals
    assert (health, status) == (503, 503) and headers["retry-after"].isdigit()
    assert json.loads(body)["error"]["code"] == "shutting_down"
    assert server.process.wait(10) == 0
    again = start("--port", str(server.port), *POOLS)
    assert again.post(PATH, LONG)["choices"][0]["text"] == whole


def test_streams_that_do_not_finish_in_time_end_with_an_error(start) -> None:
    server = start("--drain-seconds", "0.2", *POOLS)

    def end() -> None:
        server.process.send_signal(signal.SIGTERM)

    streams = asyncio.run(with_streams(server, 3, end, max_tokens=3500))
    assert all(s.is_complete and "shutting down" in s.error["message"] for s in streams)
    assert all(s.text for s in streams)
    assert server.process.wait(15) == 0
    assert "Traceback" not in server.log.read_text()


def test_a_second_signal_does_not_wait(start) -> None:
    server = start("--drain-seconds", "600", *POOLS)

    def end() -> None:
        server.process.send_signal(signal.SIGINT)
        server.wait_for_line(re.compile("ending: 2 requests"), 10)
        server.process.send_signal(signal.SIGINT)

    streams = asyncio.run(with_streams(server, 2, end, max_tokens=3500))
    assert all(s.is_complete and s.error is not None for s in streams)
    assert server.process.wait(15) == 130


def test_an_engine_that_is_killed_comes_back_and_its_requests_are_told(start) -> None:
    server = start(*POOLS)
    whole = server.post(PATH, LONG)["choices"][0]["text"]
    states = []

    def kill() -> None:
        engine = server.engine()
        engine.kill()
        engine.wait(10)
        server.wait_for_line(re.compile("ended by SIGKILL; starting another one"), 10)
        states.append(server.request("GET", "/health")[0])
        states.append(server.request("POST", PATH, LONG)[0])

    streams = asyncio.run(with_streams(server, 2, kill))
    for found in streams:
        assert found.is_complete and "SIGKILL" in found.error["message"]
        assert found.error["code"] == "engine_unavailable"
    assert states == [503, 503]
    server.wait_for_line(re.compile("the engine is ready again"))
    assert server.request("GET", "/health")[0] == 200
    assert server.post(PATH, LONG)["choices"][0]["text"] == whole
    assert server.stop() == 0


def test_an_engine_that_keeps_dying_ends_the_server_with_a_message(start) -> None:
    server = start(*POOLS)
    for number in range(1, MOST_QUICK):
        server.engine().kill()
        ready = re.compile("ready again(.|\n)*" * number)
        server.wait_for_line(ready)
    server.engine().kill()
    assert server.process.wait(30) == 1
    last = server.log.read_text().strip().splitlines()[-1]
    assert last.startswith("coachwhip: error: ") and "not started again" in last


def test_the_engine_ends_when_the_server_is_killed(start) -> None:
    server = start(*POOLS)
    engine = server.engine()
    server.kill()
    engine.wait(20)
    assert not psutil.pid_exists(engine.pid)


def said(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Returns exit code and standard error of a server that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "coachwhip", "serve", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | (environment or {}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


def test_what_cannot_run_is_said_in_one_line_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, environment, parts in (
            (("--port", port), {}, ("port is", "in use", "--port")),
            (("--host", "256.1.1.1"), {}, ("host is", "--host")),
            (("--max-model-len", "999999"), {}, ("max_model_len is 999999",)),
            (("no/such-folder/at-all",), {}, ("no/such-folder/at-all",)),
            (("--drain-seconds", "-1"), {}, ("drain_seconds is -1",)),
            ((), {"COACHWHIP_PORT": "http"}, ("COACHWHIP_PORT", "whole number")),
            ((), {"COACHWHIP_LOG_FORMAT": "xml"}, ("COACHWHIP_LOG_FORMAT", "json")),
        ):
            code, err = said(*arguments, environment=environment)
            assert code == 2, err
            (line,) = err.strip().splitlines()
            assert line.startswith("coachwhip: error: ") and all(p in line for p in parts), line


def test_a_kubernetes_variable_of_a_service_is_no_port(start) -> None:
    server = start(*POOLS, environment={"COACHWHIP_PORT": "tcp://10.0.0.7:8000"})
    assert server.request("GET", "/health")[0] == 200
