"""llama.cpp's `llama-server` on an equal checkpoint, to be measured beside coachwhip."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.serve.servers import Measured, each_running, process_running
from coachwhip.config.machine import this_machine

START_S = 120
"""Longest wait for a start."""
DRAFTS = ("--spec-type", "draft-mtp", "--spec-draft-n-max", "3")
SHORT_BATCHES = ("--ubatch-size", "64")
"""It keeps a state of each prompt at as many tokens, and 4, before the end. With its default of 512
no state of this load's prompts can be used for another one."""
CACHE_TYPES = {"float32": "f32", "bfloat16": "f16"}
"""What keys and values are kept in. 16 bits are float16 there by default, and fastest."""


def llama_variants(has_head: bool) -> dict[str, tuple[str, ...]]:
    """Returns name -> flags of the ways in which llama-server is measured."""
    found = {"llama-server": (), "llama-server, ubatch 64": SHORT_BATCHES}
    return found | ({"llama-server, mtp": DRAFTS} if has_head else {})


def llama_flags(file: Path, dtype: str, slots: int, slot_tokens: int) -> tuple[str, ...]:
    """Returns the flags that give llama-server what coachwhip has here.

    A thread for every core of this process, a slot for every client, keys and values as wide as
    the model's dtype. Continuous batching and the prompt cache, which are its defaults, are spelled
    out.

    Args:
        file: The model.
        dtype: Its dtype.
        slots: Requests at a time.
        slot_tokens: Prompt and new tokens of the longest request; the context is what all slots
            share equally.
    """
    return (
        *("--model", str(file)),
        *("--threads", str(this_machine(None).cores)),
        *("--parallel", str(slots)),
        *("--ctx-size", str(slots * slot_tokens)),
        *("--cache-type-k", CACHE_TYPES[dtype]),
        *("--cache-type-v", CACHE_TYPES[dtype]),
        "--cont-batching",
        "--cache-prompt",
        "--no-ui",
    )


@contextmanager
def llama_running(
    binary: Path, variants: dict[str, tuple[str, ...]], flags: tuple[str, ...], logs: Path
) -> Iterator[list[Measured]]:
    """Starts a llama-server for each variant and ends them all.

    Args:
        binary: The program.
        variants: Name -> flags.
        flags: Flags of all of them.
        logs: Folder for what they print.

    Raises:
        RuntimeError: One does not start; its log says why.
    """

    def one(more: tuple[str, ...], log: Path) -> AbstractContextManager[int]:
        port = _free_port()
        command = [str(binary), "--host", "127.0.0.1", "--port", str(port), *flags, *more]
        return process_running(command, log, lambda: port if _is_ready(port) else None, START_S)

    with each_running(variants, one, logs) as servers:
        yield servers


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
