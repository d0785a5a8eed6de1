"""Prompts of random tokens, and running them to their ends."""

from __future__ import annotations

import numpy as np

from coachwhip.engine import Engine
from coachwhip.sampling.params import SamplingParams


def tokens(engine: Engine, draws: np.random.Generator, count: int) -> list[int]:
    """Draws token ids beyond the special ones."""
    return draws.integers(5, engine.model.spec.vocab_size, count).tolist()


def add(engine: Engine, prompts: list[list[int]], count: int) -> None:
    """Queues prompts as requests "0", "1", ... that generate `count` tokens each."""
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), list(prompt), params)


def generate(engine: Engine, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Returns `count` tokens after each prompt."""
    done = {}
    add(engine, prompts, count)
    while engine.has_unfinished:
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output.outputs[0].token_ids
    return [done[str(i)] for i in range(len(prompts))]
