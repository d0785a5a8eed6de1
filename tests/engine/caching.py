"""Engines over tiny models whose freed slots and pages are filled with NaN."""

from __future__ import annotations

import numpy as np
import pytest

from coachwhip import SamplingParams
from coachwhip.engine import Engine
from coachwhip.verify import Result

GRID = 4


class Poison:
    """Overwrites what is freed, and checks the scheduler after each step."""

    def __init__(self, engine: Engine) -> None:
        runner = engine.runner
        self._slots = [_words(pool) for pool in runner.slot_pools]
        self._pages = [_words(pool) for pool in runner.page_pools]

    def __call__(self, engine: Engine) -> None:
        """Poisons every home of a new engine, and each one that becomes free later."""
        cache = engine.scheduler.cache
        for pool, words in ((cache.slots, self._slots), (cache.pages, self._pages)):
            if pool is not None:
                pool.on_free = lambda home, words=words: _fill(words, home)
                _fill(words, slice(None))


def _words(pool) -> np.ndarray:
    from max.dtype import DType

    word = DType.int32 if pool.dtype == DType.float32 else DType.int16
    return pool.view(word, pool.shape).to_numpy()


def _fill(words: list[np.ndarray], home) -> None:
    for array in words:
        array[home] = -1  # all bits set: NaN in every float format


def check(engine: Engine) -> None:
    """Raises AssertionError unless everything is owned once."""
    engine.scheduler.check()


def assert_nothing_is_owned(engine: Engine) -> None:
    assert not engine.has_unfinished and not engine.scheduler.has_unfinished
    check(engine)
    for pool in (engine.scheduler.cache.slots, engine.scheduler.cache.pages):
        assert pool is None or pool.owned == 0, f"{pool.name} leaked"


def generate(engine: Engine, prompts: list[list[int]], count: int) -> Result:
    """Generates one prompt after another."""
    from coachwhip.verify import run

    return [
        run(engine, [prompt], count, after_step=check, first=i)[0]
        for i, prompt in enumerate(prompts)
    ]


def outputs_of(engine: Engine, requests: dict[str, list[int]], count: int, at_step=None) -> dict:
    """Runs named requests to their ends; returns token ids by request id.

    Args:
        engine: Without unfinished requests.
        requests: Request id -> prompt.
        count: New tokens of each.
        at_step: Called with the number of each step before it.
    """
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    for request_id, prompt in requests.items():
        engine.add_request(request_id, prompt, params)
    done, step = {}, 0
    while engine.has_unfinished:
        if at_step is not None:
            at_step(step)
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output
        check(engine)
        step += 1
        assert step < 10_000, "no progress"
    return done


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, count).tolist()


slow = pytest.mark.slow
