"""Requests that share prefixes, as the lines of a batch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coachwhip.openai import COMPLETIONS_URL


@dataclass(frozen=True)
class Sizes:
    """Requests, prefixes and tokens of a batch."""

    requests: int = 1000
    prefixes: int = 10
    prefix: int = 1000
    tail: int = 24
    new_tokens: int = 16

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return self.prefix + self.tail + self.new_tokens


QUICK = Sizes(requests=12, prefixes=2, prefix=100, tail=8, new_tokens=3)


def prompts(sizes: Sizes, vocab: int) -> list[list[int]]:
    """Returns prompts of random tokens whose prefixes come in no order."""
    draws = np.random.default_rng(0)
    first = 10  # special tokens come before
    prefixes = draws.integers(first, vocab, (sizes.prefixes, sizes.prefix)).tolist()
    which = draws.permutation(np.arange(sizes.requests) % sizes.prefixes)
    tails = draws.integers(first, vocab, (sizes.requests, sizes.tail)).tolist()
    return [prefixes[i] + tail for i, tail in zip(which, tails, strict=True)]


def write_batch(path: Path, prompts: list[list[int]], new_tokens: int) -> None:
    """Writes the prompts as greedy completions of exactly so many tokens."""
    with path.open("w") as file:
        for i, prompt in enumerate(prompts):
            body = {
                "prompt": prompt,
                "max_tokens": new_tokens,
                "temperature": 0,
                "ignore_eos": True,
            }
            line = {"custom_id": str(i), "method": "POST", "url": COMPLETIONS_URL, "body": body}
            file.write(json.dumps(line) + "\n")
