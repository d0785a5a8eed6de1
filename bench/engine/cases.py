"""What is measured of an engine: the time a cache saves, and the host's share of a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

from coachwhip.engine import Engine
from coachwhip.sampling.params import SamplingParams

GRID = 64


@dataclass(frozen=True)
class Sizes:
    """Tokens, turns and requests of the cases."""

    prefix: int = 2048
    tail: int = 32
    turns: int = 8
    turn_tokens: int = 48
    system_tokens: int = 512
    requests: int = 64
    request_prefix: int = 512
    new_tokens: int = 16
    decode_batch: int = 8
    decode_steps: int = 64
    repeats: int = 5

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(
            self.prefix + self.tail + self.new_tokens,
            self.system_tokens + self.turns * (self.turn_tokens + self.new_tokens),
            self.request_prefix + self.tail + self.new_tokens,
        )


QUICK = Sizes(128, 8, 3, 10, 64, 6, 64, 4, 3, 8, 2)


@dataclass(frozen=True)
class Measured:
    """One case: seconds with and without what is measured, or a share, and what is demanded."""

    case: str
    without_s: float
    with_s: float
    unit: str
    value: float
    demand: str


def shared_prefix(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds to the first token of prompts that share a prefix: the first, and later ones."""
    draws = np.random.default_rng(0)
    prefix = _tokens(engine, draws, sizes.prefix)
    cold, warm = [], []
    for _ in range(sizes.repeats):
        engine.reset_prefix_cache()
        cold.append(_first_token_s(engine, prefix + _tokens(engine, draws, sizes.tail)))
        warm += [
            _first_token_s(engine, prefix + _tokens(engine, draws, sizes.tail)) for _ in range(2)
        ]
    a, b = median(cold), median(warm)
    name = f"first token, {sizes.prefix} shared + {sizes.tail} own tokens"
    return Measured(name, a, b, "x faster", a / b, "20 x")


def conversation(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds for all turns of a conversation, with caching off and on."""

    def run(one: Engine) -> None:
        draws = np.random.default_rng(1)
        text = _tokens(one, draws, sizes.system_tokens)
        for _ in range(sizes.turns):
            text += _tokens(one, draws, sizes.turn_tokens)
            (answer,) = _generate(one, [text], sizes.new_tokens)
            text += answer

    return _against_none(f"conversation of {sizes.turns} turns", engine, run)


def shared_batch(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds for a batch of requests with a common prefix, with caching off and on."""

    def run(one: Engine) -> None:
        draws = np.random.default_rng(2)
        prefix = _tokens(one, draws, sizes.request_prefix)
        prompts = [prefix + _tokens(one, draws, sizes.tail) for _ in range(sizes.requests)]
        _generate(one, prompts, sizes.new_tokens)

    name = f"{sizes.requests} requests, {sizes.request_prefix} shared tokens"
    return _against_none(name, engine, run)


def host_share(engine: Engine, sizes: Sizes) -> Measured:
    """The host's share of a decode step: planning, plan tensors, acceptance, commit."""
    draws = np.random.default_rng(3)
    one = engine.with_options(max_num_seqs=sizes.decode_batch)
    prompts = [_tokens(one, draws, sizes.tail) for _ in range(sizes.decode_batch)]
    _add(one, prompts, sizes.decode_steps)
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


CASES: dict[str, Callable[[Engine, Sizes], Measured]] = {
    "prefix": shared_prefix,
    "conversation": conversation,
    "batch": shared_batch,
    "host": host_share,
}


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


def _tokens(engine: Engine, draws: np.random.Generator, count: int) -> list[int]:
    return draws.integers(5, engine.model.spec.vocab_size, count).tolist()


def _add(engine: Engine, prompts: list[list[int]], count: int) -> None:
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), list(prompt), params)


def _generate(engine: Engine, prompts: list[list[int]], count: int) -> list[list[int]]:
    done = {}
    _add(engine, prompts, count)
    while engine.has_unfinished:
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output.outputs[0].token_ids
    return [done[str(i)] for i in range(len(prompts))]


def _first_token_s(engine: Engine, prompt: list[int]) -> float:
    begin = time.perf_counter()
    _generate(engine, [prompt], 1)
    return time.perf_counter() - begin
