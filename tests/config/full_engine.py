"""Fills an engine's slots and pages, and prints what that took beside what was planned.

A program of its own, since memory that others give back would be counted.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import replace

import numpy as np

from coachwhip.config import EngineOptions, examine
from coachwhip.engine import Engine
from coachwhip.memory_plan import concurrency, pool_bytes
from coachwhip.sampling.params import SamplingParams

LENGTH, NEW = 512, 32


def main(folder: str) -> dict[str, int]:
    """Returns requests that ran at a time, preemptions, and bytes, planned and measured."""
    options = EngineOptions(
        folder,
        max_model_len=LENGTH,
        max_num_seqs=24,
        mamba_block_size=8,
        cache_memory="128MiB",
        speculative_config={"method": "ngram", "num_speculative_tokens": 3, "adaptive": False},
    )
    engine = Engine(options)
    found = examine(engine.model.spec, engine.model.dtype, options, engine.machine)
    assert found.config == engine.config
    count = concurrency(engine.config, LENGTH).requests
    # The same batches without a cache: what steps themselves take, and a part of the pools.
    plain = engine.with_options(enable_prefix_caching=False)
    draws = np.random.default_rng(0)
    for _ in range(4):
        _run(plain, count, draws)
    before = _resident_bytes()
    running = min(_run(engine, count, draws) for _ in range(2))
    used = pool_bytes(replace(found, config=plain.config))
    return {
        "planned_requests": count,
        "running": running,
        "preemptions": engine.scheduler.num_preemptions,
        "planned_bytes": pool_bytes(found),
        "unused_bytes": pool_bytes(found) - used,
        "grown_bytes": _resident_bytes() - before,
    }


def _run(engine: Engine, count: int, draws: np.random.Generator) -> int:
    """Generates for so many prompts; returns how many ran at a time."""
    for i in range(count):
        prompt = draws.integers(0, engine.model.spec.vocab_size, LENGTH - NEW).tolist()
        engine.add_request(str(i), prompt, SamplingParams(max_tokens=NEW, ignore_eos=True))
    ran = 0
    while engine.has_unfinished:
        engine.step()
        ran = max(ran, len(engine.scheduler.running))
    return ran


def _resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
