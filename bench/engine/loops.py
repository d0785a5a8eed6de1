"""What the overlapped step loop saves."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from bench.engine.measured import Measured, Sizes
from bench.engine.requests import add, tokens
from coachwhip.engine import Engine


def overlapped(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds per token of a decoding batch in the simple loop and in the overlapped one, in turn
    on the same prompts."""
    draws = np.random.default_rng(6)
    batch = sizes.decode_batch
    prompts = [tokens(engine, draws, sizes.tail) for _ in range(batch)]
    seconds: dict[str, list[float]] = {"simple": [], "overlapped": []}
    for _ in range(sizes.pairs):
        for loop, found in seconds.items():
            one = engine.with_options(
                max_num_seqs=batch, step_loop=loop, speculative_config=None, drafter=None
            )
            add(one, prompts, sizes.decode_steps)
            while not all(r.output_token_ids for r in one.scheduler.running.values()) or (
                len(one.scheduler.running) < batch
            ):
                one.step()
            before, begin = one.metrics().generation_tokens, time.perf_counter()
            while one.has_unfinished:
                one.step()
            taken = time.perf_counter() - begin
            found.append(taken / (one.metrics().generation_tokens - before))
    a, b = (median(found) for found in seconds.values())
    name = f"token of {batch} requests, simple and overlapped loop"
    return Measured(name, a, b, "x faster", a / b, "1.15 x")
