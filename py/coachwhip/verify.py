"""Runs the same prompts in every way the engine knows, and compares tokens and log probabilities.

In float32 no bit may differ: no row's arithmetic depends on the rows beside it, on how a prompt is
cut, or on whether a state was computed now or restored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .engine import Engine
from .sampling.params import SamplingParams

MODES = ("none", "align", "all")
BUDGETS = (1, 3, 7, 16, 64, 512)
BATCHES = (1, 2, 8)
STARTS = ("cold", "warm", "evicted")
DRAFTS = (1, 2, 3, 4, 5)
LOOPS = ("simple", "overlapped")
MOST_PREEMPTIONS = 2
"""Forced preemptions of each request: without a cache, more would only repeat the same."""

Result = list[tuple[list[int], list[dict[int, float]]]]
"""For each prompt its tokens and their log probabilities."""


@dataclass(frozen=True)
class Variant:
    """One way to run the prompts: options, forced preemption, what the cache holds before, the
    drafter with the number of drafts (None and 0: no speculation), and the step loop."""

    mode: str
    budget: int
    batch: int
    preempt: bool
    start: str
    method: str | None = None
    drafts: int = 0
    loop: str = "simple"


@dataclass(frozen=True)
class Outcome:
    """What a variant gave: whether every bit was as expected, and that the cache took part."""

    variant: Variant
    equal: bool
    cached_tokens: int
    preemptions: int
    drafted: int
    accepted: int
    first_difference: str | None


class KnownTexts:
    """A drafter for the method `custom` that knows what the prompts lead to, and errs at times.

    Args:
        prompts: Of the requests "0", "1", ...
        results: What they lead to.
    """

    def __init__(self, prompts: Sequence[list[int]], results: Result) -> None:
        self._texts = [
            [*prompt, *tokens] for prompt, (tokens, _) in zip(prompts, results, strict=True)
        ]

    def propose(self, request_id: str, token_ids: list[int], k: int) -> list[int]:
        """Returns up to `k` tokens, of which the last ones may be wrong."""
        begin = len(token_ids)
        drafts = self._texts[int(request_id)][begin : begin + k]
        wrong = (7 * begin + int(request_id)) % (k + 2)
        if wrong < len(drafts):
            drafts[wrong] = drafts[wrong] - 1 if drafts[wrong] else 1
        return drafts


def make_prompts(vocab: int, longest: int, block: int, seed: int = 0) -> list[list[int]]:
    """Draws prompts that share prefixes: whole, past a grid point, just below one, and not at all.

    Args:
        vocab: Size of the vocabulary.
        longest: Most tokens of a prompt, at least 2.
        block: The checkpoint grid.
        seed: Of the draws.
    """
    draws = np.random.default_rng(seed)
    trunk = draws.integers(0, vocab, longest).tolist()
    lengths = (longest, 2 * block + 1, 2 * block, 3 * block + block // 2, 1)
    prompts = [trunk[: min(n, longest)] for n in lengths]
    fork = min(longest // 2, 2 * block + 3)
    prompts.append(trunk[:fork] + draws.integers(0, vocab, min(block, longest - fork)).tolist())
    prompts.append(draws.integers(0, vocab, min(block + 2, longest)).tolist())
    prompts.append(list(prompts[0]))
    return prompts


def params_of(index: int, max_tokens: int) -> SamplingParams:
    """Returns what the prompt of an index is run with: every second one is sampled, with filters
    and penalties."""
    drawn = {
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.01,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "repetition_penalty": 1.1,
        "seed": index,
    }
    return SamplingParams(
        max_tokens=max_tokens, ignore_eos=True, logprobs=2, **(drawn if index % 2 else {})
    )


def run(
    engine: Engine,
    prompts: Sequence[list[int]],
    max_tokens: int,
    preempt: bool = False,
    after_step: Callable[[Engine], None] | None = None,
    first: int = 0,
) -> Result:
    """Generates for all prompts at once.

    Args:
        engine: Without unfinished requests.
        prompts: Token ids.
        max_tokens: New tokens of each.
        preempt: Send a running request back to the queue after every second step.
        after_step: Called after each step.
        first: Index of the first prompt, which decides how it is run.
    """
    for i, ids in enumerate(prompts):
        engine.add_request(str(i), ids, params_of(first + i, max_tokens))
    done: dict[str, tuple] = {}
    preempted = dict.fromkeys(map(str, range(len(prompts))), 0)
    for step in itertools.count():
        if not engine.has_unfinished:
            break
        for output in engine.step():
            if output.finished:
                completion = output.outputs[0]
                done[output.request_id] = (completion.token_ids, completion.logprobs)
        if preempt and step % 2:
            running = [r for r in engine.scheduler.running if preempted[r] < MOST_PREEMPTIONS]
            if running:
                victim = running[step // 2 % len(running)]
                preempted[victim] += 1
                engine.preempt(victim)
        if after_step is not None:
            after_step(engine)
    return [done[str(i)] for i in range(len(prompts))]


def evict_half(engine: Engine) -> None:
    """Evicts the less recently used half of the checkpoints and of the cached pages."""
    cache = engine.scheduler.cache
    for pool in (cache.slots, cache.pages):
        if pool is not None:
            count = pool.free + (pool.available - pool.free + 1) // 2
            for home in [pool.take() for _ in range(count)]:
                pool.release(home)


def variants(
    modes: Iterable[str] = MODES,
    budgets: Iterable[int] = BUDGETS,
    batches: Iterable[int] = BATCHES,
    preempts: Iterable[bool] = (False, True),
    speculations: Iterable[tuple[str | None, int]] = ((None, 0),),
    loops: Iterable[str] = LOOPS,
) -> Iterator[Variant]:
    """Yields all combinations; those of one engine follow each other as cold, warm, evicted.

    Args:
        modes: Cache modes.
        budgets: Rows of a step.
        batches: Running requests.
        preempts: Whether requests are preempted.
        speculations: Methods and numbers of drafts; each combination of the others takes the next
            one, so that all of them meet all the others sooner or later.
        loops: Step loops, which take turns in the same way.
    """
    turns, loop_turns = list(speculations), list(loops)
    combinations = itertools.product(modes, budgets, batches, preempts)
    for i, (mode, budget, batch, preempt) in enumerate(combinations):
        # One further at each turn, lest a period of the others always meets the same ones.
        method, drafts = turns[(i + i // len(turns)) % len(turns)]
        loop = loop_turns[(i + i // len(loop_turns)) % len(loop_turns)]
        for start in STARTS:
            yield Variant(mode, budget, batch, preempt, start, method, drafts, loop)


def outcomes(
    engine: Engine,
    prompts: Sequence[list[int]],
    max_tokens: int,
    chosen: Iterable[Variant],
    prepare: Callable[[Engine], None] | None = None,
    after_step: Callable[[Engine], None] | None = None,
) -> Iterator[Outcome]:
    """Runs variants and yields how each compares with a run one by one, without any cache.

    Args:
        engine: Gives weights and pools; needs room for the largest batch.
        prompts: Token ids.
        max_tokens: New tokens of each.
        chosen: As `variants` yields them.
        prepare: Called with each new engine.
        after_step: Called after each step.
    """
    plain = engine.with_options(
        enable_prefix_caching=False,
        mamba_cache_mode="none",
        mamba_block_size=None,
        max_num_seqs=1,
        step_loop="simple",
        **speculation_options(engine),
    )
    if prepare is not None:
        prepare(plain)
    want = run(plain, prompts, max_tokens)
    known = KnownTexts(prompts, want)
    variant_engine = plain
    for variant in chosen:
        if variant.start == "cold":
            variant_engine = engine.with_options(
                enable_prefix_caching=None,
                enable_chunked_prefill=None,
                mamba_cache_mode=variant.mode,
                max_num_batched_tokens=variant.budget,
                max_num_seqs=variant.batch,
                step_loop=variant.loop,
                **speculation_options(engine, variant.method, variant.drafts, known),
            )
            if prepare is not None:
                prepare(variant_engine)
        elif variant.start == "evicted":
            evict_half(variant_engine)
        before = variant_engine.metrics()
        got = run(variant_engine, prompts, max_tokens, variant.preempt, after_step)
        after = variant_engine.metrics()
        yield Outcome(
            variant,
            got == want,
            after.prefix_cache_hits - before.prefix_cache_hits,
            after.num_preemptions - before.num_preemptions,
            after.spec_decode_num_draft_tokens - before.spec_decode_num_draft_tokens,
            after.spec_decode_num_accepted_tokens - before.spec_decode_num_accepted_tokens,
            first_difference(got, want),
        )


def speculation_options(
    engine: Engine, method: str | None = None, drafts: int = 0, drafter: object | None = None
) -> dict[str, object]:
    """Returns engine options for a method and a number of drafts, None for no speculation.

    Args:
        engine: Its own settings count where it has that method.
        method: As in `speculative_config`.
        drafts: Most drafts of a request.
        drafter: Of the method `custom`.
    """
    own, config = engine.config.speculation, None
    if method is not None:
        config = {"method": method, "num_speculative_tokens": drafts, "adaptive": False}
        if own is not None and own.method == method and method == "draft_model":
            config["model"] = own.model
    return {
        "speculative_config": config,
        "spec_method": None,
        "spec_tokens": None,
        "spec_model": None,
        "drafter": drafter if method == "custom" else None,
    }


def first_difference(got: Result, want: Result) -> str | None:
    """Says where two results differ first; None if they do not."""
    for i, (mine, yours) in enumerate(zip(got, want, strict=True)):
        for at, (a, b) in enumerate(zip(mine[0], yours[0], strict=True)):
            if a != b:
                return f"prompt {i}, new token {at}: {a}, not {b}"
        for at, (a, b) in enumerate(zip(mine[1], yours[1], strict=True)):
            if a != b:
                return f"prompt {i}, log probabilities of new token {at}: {a}, not {b}"
    return None
