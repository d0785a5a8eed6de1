"""What drafts save where they are right, and cost where they are wrong."""

from __future__ import annotations

import random
import time
from statistics import median

import numpy as np

from bench.engine.measured import Measured, Sizes
from bench.engine.requests import add, generate, tokens
from coachwhip.engine import Engine

DRAFTS = 3
ACCEPTANCE = 0.8
"""Share of the scripted drafts that are right where those before them are."""


class Scripted:
    """Knows the text, and is right about each token with a given probability.

    Args:
        text: Prompt and continuation of the only request.
        acceptance: Probability of each draft to be right.
    """

    def __init__(self, text: list[int], acceptance: float) -> None:
        self._text, self._acceptance = text, acceptance
        self._draws = random.Random(4)

    def propose(self, request_id: str, token_ids: list[int], k: int) -> list[int]:
        """Returns `k` drafts."""
        begin = len(token_ids)
        drafts = self._text[begin : begin + k]
        right, acceptance = self._draws.random, self._acceptance
        return [t if right() < acceptance else 7 + (t == 7) for t in drafts]


def verify_step(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds of a step that verifies three drafts, against one that computes one token."""
    prompt, text = _text(engine, sizes)
    plain, drafted = [], []
    for _ in range(sizes.pairs):
        plain.append(_step_s(_without(engine), prompt, sizes))
        drafted.append(_step_s(_with(engine, Scripted(text, 0.0)), prompt, sizes))
    a, b, ratio = median(plain), median(drafted), _ratio(plain, drafted)
    name = f"step of 1 row, of {1 + DRAFTS} rows"
    return Measured(name, a, b, "x a decode step", ratio, "1.4 x")


def accepted(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds per token with drafts of which four in five are right, against none."""
    prompt, text = _text(engine, sizes)
    a, b, ratio, length = _paired(engine, sizes, prompt, lambda: Scripted(text, ACCEPTANCE))
    name = f"token, {DRAFTS} drafts {ACCEPTANCE:.0%} right ({length:.2f} tokens a step)"
    return Measured(name, a, b, "x faster", 1 / ratio, "1.8 x")


def rejected(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds per token with drafts that are always wrong, against none."""
    prompt, text = _text(engine, sizes)
    a, b, ratio, _ = _paired(engine, sizes, prompt, lambda: Scripted(text, 0.0))
    return Measured(f"token, {DRAFTS} drafts all wrong", a, b, "% more", 100 * (ratio - 1), "40 %")


def switched_off(engine: Engine, sizes: Sizes) -> Measured:
    """The same with the automatic switch."""
    prompt, text = _text(engine, sizes)
    a, b, ratio, _ = _paired(engine, sizes, prompt, lambda: Scripted(text, 0.0), adaptive=True)
    name = f"token, {DRAFTS} drafts all wrong, switched off"
    return Measured(name, a, b, "% more", 100 * (ratio - 1), "5 %")


def own_head(engine: Engine, sizes: Sizes) -> Measured | None:
    """Seconds per token with the model's own head, on text; None for a model without one."""
    if not engine.config.runs_head:
        return None
    prompt = engine.tokenizer.encode("The President of the United States")
    a, b, ratio, length = _paired(engine, sizes, prompt, None)
    name = f"token, {DRAFTS} drafts of its head ({length:.2f} tokens a step)"
    return Measured(name, a, b, "x faster", 1 / ratio, "reported")


def repeated_text(engine: Engine, sizes: Sizes) -> Measured:
    """Seconds per token with n-gram drafts."""
    prompt, _ = _text(engine, sizes)
    a, b, ratio, length = _paired(engine, sizes, prompt, None, method="ngram")
    name = f"token, {DRAFTS} n-gram drafts ({length:.2f} tokens a step)"
    return Measured(name, a, b, "x faster", 1 / ratio, "reported")


def _text(engine: Engine, sizes: Sizes) -> tuple[list[int], list[int]]:
    """Returns a prompt, and prompt and text together."""
    prompt = tokens(engine, np.random.default_rng(5), sizes.tail)
    (text,) = generate(_without(engine), [prompt], sizes.speculated)
    return prompt, prompt + text


def _without(engine: Engine) -> Engine:
    return engine.with_options(max_num_seqs=1, speculative_config=None)


def _with(engine: Engine, drafter, method: str = "custom", adaptive: bool = False) -> Engine:
    config = {"method": method, "num_speculative_tokens": DRAFTS, "adaptive": adaptive}
    return engine.with_options(max_num_seqs=1, speculative_config=config, drafter=drafter)


def _step_s(engine: Engine, prompt: list[int], sizes: Sizes) -> float:
    """Returns the median seconds of decode steps of one request."""
    add(engine, [prompt], sizes.decode_steps)
    engine.step()
    seconds = []
    while engine.has_unfinished:
        begin = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - begin)
    return median(seconds[: max(1, len(seconds) - DRAFTS)])


def _paired(
    engine: Engine,
    sizes: Sizes,
    prompt: list[int],
    drafter,
    *,
    method: str | None = None,
    adaptive: bool = False,
) -> tuple[float, float, float, float]:
    """Runs a prompt without and with drafts in turn; returns medians of seconds per token.

    Args:
        engine: Gives weights and pools.
        sizes: Tokens and repeats.
        prompt: Token ids.
        drafter: Makes a drafter; None where the method needs none.
        method: The method; None is `custom` with a drafter, else the model's own head.
        adaptive: Whether drafts are given up where they do not pay.

    Returns:
        Seconds without, seconds with, the ratio with to without, tokens per step with.
    """
    method = method or ("mtp" if drafter is None else "custom")
    plain, drafted = [], []
    for _ in range(sizes.pairs):
        for one, found in (
            (_without(engine), plain),
            (_with(engine, drafter and drafter(), method, adaptive), drafted),
        ):
            add(one, [prompt], sizes.speculated)
            one.step()
            begin = time.perf_counter()
            while one.has_unfinished:
                one.step()
            found.append((time.perf_counter() - begin) / (sizes.speculated - 1))
    length = (sizes.speculated - 1) / (one.metrics().num_steps - 1)
    return median(plain), median(drafted), _ratio(plain, drafted), length


def _ratio(plain: list[float], drafted: list[float]) -> float:
    """Returns the median ratio of neighbours in time: a pace drifts less within a pair."""
    return median(b / a for a, b in zip(plain, drafted, strict=True))
