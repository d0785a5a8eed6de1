"""Clients that send one streaming request after the other, and what they wait for."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from statistics import median

from bench.serve.servers import Measured

WORDS = (
    *("the", "of", "and", "to", "in", "that", "it", "was", "for", "be", "not", "but", "have"),
    *("which", "are", "on", "or", "at", "from", "this", "all", "their", "who", "would", "upon"),
    *("our", "people", "great", "year", "peace", "nation", "Congress", "law", "labor", "trade"),
)


@dataclass(frozen=True)
class Sizes:
    """Words, tokens and requests of a load."""

    clients: tuple[int, ...] = (1, 8, 32)
    requests: int = 2
    """Of each client, one after the other."""
    shared_words: int = 384
    own_words: int = 24
    new_tokens: int = 32
    repeats: int = 3

    @property
    def most_tokens(self) -> int:
        """What a request needs at most, with room for drafts: a multiple of 256 tokens."""
        most = 2 * (self.shared_words + self.own_words) + self.new_tokens + 16
        return -(-most // 256) * 256


QUICK = Sizes((1, 3), 1, 40, 8, 4, 1)


@dataclass(frozen=True)
class Waits:
    """Seconds that clients waited, and what they got."""

    first_s: tuple[float, ...]
    """To the first token, of each request."""
    between_s: tuple[float, ...]
    """From token to token, the mean of each request."""
    tokens: int
    seconds: float

    @property
    def first(self) -> float:
        """Median seconds to the first token."""
        return median(self.first_s)

    @property
    def between(self) -> float:
        """Median seconds between tokens."""
        return median(self.between_s)

    @property
    def rate(self) -> float:
        """Tokens per second of all clients together."""
        return self.tokens / self.seconds


def prompts(sizes: Sizes, clients: int, seed: int) -> list[list[str]]:
    """Returns the prompts of each client: a beginning that all share, and an end of its own."""
    draw = random.Random(seed)
    shared = " ".join(draw.choices(WORDS, k=sizes.shared_words))
    return [
        [
            f"{shared} {' '.join(draw.choices(WORDS, k=sizes.own_words))}"
            for _ in range(sizes.requests)
        ]
        for _ in range(clients)
    ]


def measure(server: Measured, sizes: Sizes, clients: int, seed: int) -> Waits:
    """Returns what clients wait for at a server.

    Args:
        server: The server.
        sizes: How much each client asks for.
        clients: Clients at a time.
        seed: Decides the prompts; those of another seed share nothing with them.
    """
    return asyncio.run(_crowd(server, sizes, prompts(sizes, clients, seed)))


async def _crowd(server: Measured, sizes: Sizes, texts: list[list[str]]) -> Waits:
    begin = time.perf_counter()
    found = await asyncio.gather(*(_client(server, sizes, own) for own in texts))
    seconds = time.perf_counter() - begin
    waits = [wait for one in found for wait in one]
    return Waits(
        tuple(first for first, _, _ in waits),
        tuple(between for _, between, _ in waits),
        sum(tokens for _, _, tokens in waits),
        seconds,
    )


async def _client(server: Measured, sizes: Sizes, texts: list[str]) -> list[tuple]:
    return [await _request(server, sizes, text) for text in texts]


async def _request(server: Measured, sizes: Sizes, text: str) -> tuple[float, float, int]:
    """Returns seconds to the first token, mean seconds between tokens, and tokens."""
    body = {
        "prompt": text,
        "max_tokens": sizes.new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if server.model is not None:
        body["model"] = server.model
    data = json.dumps(body).encode()
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {server.host}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    first, last, tokens = None, begin, 0
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise RuntimeError(f"{server.name}: {chunk['error']}")
        if chunk["choices"] and chunk["choices"][0]["text"]:
            last = time.perf_counter()
            first = first or last
            tokens += 1
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
    writer.close()
    if first is None:
        raise RuntimeError(f"{server.name} sent no text")
    return first - begin, (last - first) / max(1, tokens - 1), tokens
