"""Many clients at a time: nothing fails or leaks, and nobody notices the others."""

from __future__ import annotations

import asyncio
import os
import random
import time

import psutil
import pytest

from tests.serve.server import Server
from tests.serve.streams import Streamed, open_request, stream

CLIENTS = 64
SECONDS = float(os.environ.get("COACHWHIP_SERVE_LOAD_SECONDS", "8"))
"""How long new requests are sent; 60 is the long form."""
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = ("the", "people", "of", "these", "States", "have", "seen", "many", "years", "of", "peace")


def bodies(count: int, seed: int) -> list[tuple[str, dict]]:
    """Returns different requests: lengths, both URLs, greedy and sampled, several choices."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        text = " ".join(draw.choices(WORDS, k=draw.choice((3, 20, 60, 200)))) + f" {number}"
        body = {"max_tokens": draw.choice((1, 5, 16, 40)), "temperature": draw.choice((0, 0.9))}
        body |= {"seed": number, "n": draw.choice((1, 1, 1, 2))}
        if draw.random() < 0.2:
            body["stop"] = [" of"]
        if draw.random() < 0.5:
            found.append((CHAT, body | {"messages": [{"role": "user", "content": text}]}))
        else:
            found.append((COMPLETIONS, body | {"prompt": text}))
    return found


async def solo(port: int, requests: list[tuple[str, dict]]) -> list[Streamed]:
    """Returns what each request brings when it is the only one."""
    return [await stream(port, path, body) for path, body in requests]


async def crowd(
    port: int, requests: list[tuple[str, dict]], end: float, clients: int = CLIENTS
) -> list[tuple[int, Streamed]]:
    """Returns (request, outcome) of what stayed, with clients that go at all times beside."""

    async def client(number: int) -> list[tuple[int, Streamed]]:
        draw, found = random.Random(number), []
        while time.monotonic() < end:
            at = draw.randrange(len(requests))
            path, body = requests[at]
            if draw.random() < 0.35:
                await stream(port, path, body, leave_after=draw.choice((0, 1, 2, 7)))
            else:
                found.append((at, await stream(port, path, body)))
        return found

    lists = await asyncio.gather(*(client(i) for i in range(clients)))
    return [one for found in lists for one in found]


def pools(status: dict) -> tuple:
    """Returns what may not change from one idle moment to another."""
    slots, pages = status["slots"], status["pages"]
    return slots["live"], pages["live"], slots["total"], pages["total"]


def test_crowds_of_clients_that_come_and_go(server: Server) -> None:
    requests = bodies(48, seed=1)
    expected = asyncio.run(solo(server.port, requests))
    assert all(e.is_complete and e.error is None for e in expected)
    server.post("/reset_prefix_cache", {})
    idle = pools(server.wait_until_idle())
    assert idle[:2] == (0, 0)
    found = asyncio.run(crowd(server.port, requests, time.monotonic() + SECONDS))
    assert len(found) > CLIENTS
    for at, outcome in found:
        assert outcome == expected[at], requests[at]
    assert pools(server.wait_until_idle()) == idle


ENDLESS = {"prompt": "On", "max_tokens": 3000, "ignore_eos": True}


def test_a_client_that_goes_frees_its_request_at_once(server: Server) -> None:
    async def leave() -> None:
        reader, writer = await open_request(server.port, COMPLETIONS, ENDLESS | {"stream": True})
        await reader.readuntil(b"data: ")
        assert server.get("/status")["requests"]["running"] == 1
        writer.close()

    server.wait_until_idle()
    generated = server.get("/status")["tokens"]["generated"]
    asyncio.run(leave())
    status = server.wait_until_idle(5)
    assert status["slots"]["live"] == 0
    assert status["tokens"]["generated"] - generated < 1500
    steps = _steps(server)
    time.sleep(0.2)
    assert _steps(server) == steps  # nothing goes on behind its back


def test_a_client_that_goes_frees_a_response_that_is_not_streamed(server: Server) -> None:
    async def leave() -> None:
        _, writer = await open_request(server.port, COMPLETIONS, ENDLESS | {"n": 3})
        while server.get("/status")["requests"]["running"] < 3:
            await asyncio.sleep(0.01)
        writer.close()

    server.wait_until_idle()
    generated = server.get("/status")["tokens"]["generated"]
    asyncio.run(leave())
    status = server.wait_until_idle(5)
    assert status["slots"]["live"] == 0
    assert status["tokens"]["generated"] - generated < 4500


def test_a_client_that_reads_nothing_stops_no_other(server: Server) -> None:
    texts = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}
    texts["messages"] = [{"role": "user", "content": "On"}]

    async def beside() -> tuple[list[Streamed], Streamed]:
        # About 2 kB for each of 2800 tokens: more than the sockets of both sides hold.
        body = texts | {"logprobs": True, "top_logprobs": 20, "n": 7, "stream": True}
        reader, writer = await open_request(server.port, CHAT, body, receive_bytes=1 << 14)
        while not server.get("/status")["requests"]["running"]:
            await asyncio.sleep(0.01)
        body = {"prompt": "The state of", "max_tokens": 30, "temperature": 0}
        quick = [await stream(server.port, COMPLETIONS, body) for _ in range(3)]
        while server.get("/status")["requests"]["running"]:
            await asyncio.sleep(0.05)  # the engine finishes what nobody reads
        slow, data = Streamed(), b""
        while piece := await reader.read(1 << 16):  # an event may be longer than buffers
            data += piece
            if data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                break
        for line in data.splitlines():
            if line.startswith(b"data: "):
                slow.take(line[6:].decode())
        writer.close()
        return quick, slow

    quick, slow = asyncio.run(beside())
    assert all(one.is_complete and one.text == quick[0].text for one in quick)
    assert slow.reasons == dict.fromkeys(range(7), "length")
    whole = server.post(CHAT, texts)["choices"][0]["message"]["content"]
    assert slow.texts == dict.fromkeys(range(7), whole)


def test_memory_does_not_grow_with_requests(server: Server) -> None:
    def bytes_now() -> int:
        tree = psutil.Process(server.process.pid)
        return sum(p.memory_info().rss for p in (tree, *tree.children()))

    def some() -> None:
        end = time.monotonic() + 0.7
        asyncio.run(crowd(server.port, bodies(200, seed=int(end * 1e6)), end, 16))
        server.wait_until_idle()

    for _ in range(2):
        some()
    before = bytes_now()
    for _ in range(2):
        some()
    assert bytes_now() - before < 24 << 20


def _steps(server: Server) -> int:
    _, _, text = server.request("GET", "/metrics")
    for line in text.decode().splitlines():
        if line.startswith("coachwhip_num_steps_total"):
            return int(float(line.split()[-1]))
    pytest.fail("no count of steps")
