"""One server for all tests that leave it as it is, with drafts, and a function to start others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import openai
import pytest

from tests.serve.server import Server

SPECULATION = {"method": "mtp", "num_speculative_tokens": 3, "adaptive": False}
# Small pools, which are soon full: checkpoints are evicted, and memory is flat from then on.
POOLS = ("--num-state-slots", "96", "--num-kv-pages", "1024")
FLAGS = (*POOLS, "--speculative-config", json.dumps(SPECULATION), "--max-queue-size", "128")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The small model, drafted for by its own head."""
    running = Server(tmp_path_factory.mktemp("serve") / "log", *FLAGS)
    yield running
    code = running.stop()
    assert code == 0, running.log.read_text()
    assert "Traceback" not in running.log.read_text()


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Server]]:
    """Returns a function that starts a server with some arguments."""
    started: list[Server] = []

    def one(*arguments: str, **more) -> Server:
        started.append(Server(tmp_path / f"log{len(started)}", *arguments, **more))
        return started[-1]

    yield one
    for running in started:
        running.kill()


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    """OpenAI's own client; it does not try again."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
