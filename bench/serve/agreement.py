"""Whether two servers with equal checkpoints say the same."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass

from bench.serve.servers import Measured


@dataclass(frozen=True)
class Agreement:
    """What two servers made of the same prompts."""

    prompts: int
    same_tokens: int
    """Prompts that both turned into the same token ids."""
    same_texts: int
    """Prompts that both continued with the same greedy text."""


def agreement(ours: Measured, theirs: Measured, texts: list[str], new_tokens: int) -> Agreement:
    """Compares token ids and greedy texts of coachwhip and of llama-server.

    Args:
        ours: A coachwhip server.
        theirs: A llama-server.
        texts: The prompts.
        new_tokens: How many tokens each text has.
    """
    special = {"add_special": True, "parse_special": True}
    same_tokens = sum(
        _post(ours, "/tokenize", {"prompt": text})["tokens"]
        == _post(theirs, "/tokenize", {"content": text, **special})["tokens"]
        for text in texts
    )
    same_texts = sum(_greedy(ours, t, new_tokens) == _greedy(theirs, t, new_tokens) for t in texts)
    return Agreement(len(texts), same_tokens, same_texts)


def _greedy(server: Measured, text: str, new_tokens: int) -> str:
    body = {"prompt": text, "max_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    return _post(server, "/v1/completions", body)["choices"][0]["text"]


def _post(server: Measured, path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"http://{server.host}:{server.port}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.loads(answer.read())
