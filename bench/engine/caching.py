"""What is measured of an engine: the time a cache saves, and the host's share of a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from bench.engine.measured import Measured, Sizes
from bench.engine.requests import add, generate, tokens
from coachwhip.engine import Engine

GRID = 64


def shared_prefix(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds to the first token of prompts that share a prefix: the first, and later ones."""
    draws = np.random.default_rng(0)
    prefix = tokens(engine, draws, sizes.prefix)
    cold, warm = [], []
    for _ in range(sizes.repeats):
        engine.reset_prefix_cache()
        cold.append(_first_token_s(engine, prefix + tokens(engine, draws, sizes.tail)))
        warm += [
            _first_token_s(engine, prefix + tokens(engine, draws, sizes.tail)) for _ in range(2)
        ]
    a, b = median(cold), median(warm)
    name = f"first token, {sizes.prefix} shared + {sizes.tail} own tokens"
    return Measured(name, a, b, "x faster", a / b, "20 x")


def conversation(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds for all turns of a conversation, with caching off and on."""

    def run(one: Engine) -> None:
        draws = np.random.default_rng(1)
        text = tokens(one, draws, sizes.system_tokens)
        for _ in range(sizes.turns):
            text += tokens(one, draws, sizes.turn_tokens)
            (answer,) = generate(one, [text], sizes.new_tokens)
            text += answer

    return _against_none(f"conversation of {sizes.turns} turns", engine, run)


def shared_batch(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds for a batch of requests with a common prefix, with caching off and on."""

    def run(one: Engine) -> None:
        draws = np.random.default_rng(2)
        prefix = tokens(one, draws, sizes.request_prefix)
        prompts = [prefix + tokens(one, draws, sizes.tail) for _ in range(sizes.requests)]
        generate(one, prompts, sizes.new_tokens)

    name = f"{sizes.requests} requests, {sizes.request_prefix} shared tokens"
    return _against_none(name, engine, run)


def host_share(engine: Engine, sizes: Sizes) -> Measured:
    """The host's share of a decode step: planning, plan tensors, acceptance, commit."""
    draws = np.random.default_rng(3)
    one = engine.with_options(max_num_seqs=sizes.decode_batch)
    prompts = [tokens(one, draws, sizes.tail) for _ in range(sizes.decode_batch)]
    add(one, prompts, sizes.decode_steps)
    while any(not r.decodes for r in one.scheduler.running.values()) or not one.scheduler.running:
        one.step()
    before = one.metrics()
    while one.has_unfinished:
        one.step()
    after = one.metrics()
    steps = after.num_steps - before.num_steps
    host = (after.step_seconds.host - before.step_seconds.host) / steps
    graph = (after.step_seconds.execute - before.step_seconds.execute) / steps
    name = f"decode step of {sizes.decode_batch} requests: graph, host"
    return Measured(name, graph, host, "% of the step", 100 * host / (host + graph), "below 5 %")


def _against_none(name: str, engine: Engine, run: Callable[[Engine], None]) -> Measured:
    seconds = []
    for options in (
        {"enable_prefix_caching": False, "mamba_cache_mode": "none", "mamba_block_size": None},
        {},
    ):
        one = engine.with_options(**options)
        begin = time.perf_counter()
        run(one)
        seconds.append(time.perf_counter() - begin)
    off, on = seconds
    return Measured(name, off, on, "x faster", off / on, "reported")


def _first_token_s(engine: Engine, prompt: list[int]) -> float:
    begin = time.perf_counter()
    generate(engine, [prompt], 1)
    return time.perf_counter() - begin
