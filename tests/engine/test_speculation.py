"""Drafts change no bit: tokens and log probabilities are those of a run without them."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from coachwhip import SamplingParams
from coachwhip.config import EngineOptions
from coachwhip.engine import Engine
from coachwhip.verify import LOOPS, make_prompts, outcomes, speculation_options, variants
from tests.engine.caching import (
    GRID,
    Poison,
    assert_nothing_is_owned,
    check,
    outputs_of,
    slow,
    tokens,
)
from tests.engine.scripted import ScriptedDrafter

NAME = "nemotron_latent_mtp"
LONGEST = 96
MOST = 5
NEW = 12
HEAD = {"method": "mtp", "num_speculative_tokens": MOST, "adaptive": False}


@pytest.fixture(scope="module")
def base(tiny_folder):
    """An engine whose weights and pools those of the tests share; it has the head."""
    return Engine(
        EngineOptions(
            model=str(tiny_folder(NAME)),
            dtype="float32",
            max_model_len=LONGEST,
            mamba_block_size=GRID,
            num_state_slots=160,
            speculative_config=HEAD,
        )
    )


@pytest.fixture
def make(base):
    """Returns a function: options -> a poisoned engine with nothing cached."""

    def engine(method: str | None = None, drafts: int = 0, **options) -> Engine:
        made = base.with_options(**speculation_options(base, method, drafts) | options)
        Poison(base)(made)
        return made

    return engine


@pytest.fixture
def scripted(make):
    """Returns a function: (drafter, drafts, options) -> an engine that asks the drafter."""

    def engine(drafter, drafts: int, **options) -> Engine:
        config = {"method": "custom", "num_speculative_tokens": drafts, "adaptive": False}
        return make(speculative_config=config, drafter=drafter, **options)

    return engine


def audit(engine: Engine) -> None:
    """Compares the state of every running request with a computation from nothing."""
    engine.scheduler.check()
    runner, spare = engine.runner, engine.runner.config.num_state_slots - 1
    assert engine.scheduler.cache.slots.total <= spare, "the last slot is the auditor's"
    for request in engine.scheduler.running.values():
        if not request.num_computed:
            continue
        recompute(engine, request, spare)
        for pool in runner.slot_pools:
            words = pool.to_numpy().view("int32")
            assert np.array_equal(words[request.read_slot], words[spare]), (
                f"the state of {request.request_id} is not that of {request.num_computed} tokens"
            )


def recompute(engine: Engine, request, slot: int) -> None:
    """Computes a request's state into a slot, with pages that nobody uses."""
    from coachwhip.schedule.plan import PlannedSequence, StepPlan

    count = request.num_computed
    needed = -(-count // engine.config.kv_cache_page_size)
    pages = range(engine.config.num_kv_pages, engine.config.num_kv_pages + needed)
    writes = (*[-1] * (count - 1), slot)
    rows = tuple(request.tokens(0, count))
    sequence = PlannedSequence("audit", rows, 0, -1, writes, tuple(pages), 0)
    engine.runner.execute(StepPlan((sequence,)))


ALL_SPECULATIONS = [
    (method, count) for count in range(1, MOST + 1) for method in ("mtp", "ngram", "custom")
]


@slow
@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_no_bit_depends_on_drafts_mode_budget_batch_preemption_or_cache(base, mode):
    prompts = make_prompts(512, 30, GRID)
    chosen = variants([mode], speculations=ALL_SPECULATIONS)
    drafted = accepted = 0
    for outcome in outcomes(base, prompts, NEW, chosen, prepare=Poison(base), after_step=check):
        assert outcome.equal, f"{outcome.variant}: {outcome.first_difference}"
        if mode != "none" and outcome.variant.start != "cold":
            assert outcome.cached_tokens > 0, outcome.variant
        drafted += outcome.drafted
        accepted += outcome.accepted
    assert drafted > accepted > 500


@slow
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("grid", [4, 8, 16])
def test_every_number_of_accepted_drafts_at_every_place_of_the_grid(make, scripted, grid, sampled):
    """All pairs (computed tokens mod grid, accepted), with runs that cross two boundaries at once,
    drafts of varying number, none included, beside prompts; every state audited in every step."""
    draws = random.Random(grid)
    prompts = {str(i): tokens(1 + 5 * i % 17, seed=i) for i in range(6 + grid // 2)}
    params = SamplingParams(
        max_tokens=50, ignore_eos=True, logprobs=1, temperature=0.7 * sampled, top_p=0.9, seed=1
    )

    def generate(engine, after_step=None):
        done = {}
        for request_id, prompt in prompts.items():
            engine.add_request(request_id, prompt, params)
        while engine.has_unfinished:
            for output in engine.step():
                if output.finished:
                    done[output.request_id] = output.outputs[0]
            if after_step is not None:
                after_step(engine)
        return done

    want = generate(make(mamba_block_size=grid, max_num_seqs=3))
    texts = {i: prompts[i] + list(o.token_ids) for i, o in want.items()}

    tried, seen, crossed = Counter(), set(), 0

    def script(request_id, length, k):
        if draws.random() < 0.2:
            return draws.randint(0, k), draws.randint(0, k)
        right = min(range(k + 1), key=lambda n: tried[(length - 1) % grid, n])
        tried[(length - 1) % grid, right] += 1
        return right, k

    for most in (1, 3, 5, 9):
        drafter = ScriptedDrafter(texts, script)
        engine = scripted(
            drafter,
            most,
            mamba_block_size=grid,
            max_num_seqs=3,
            max_num_batched_tokens=24,
            num_state_slots=150,
            num_kv_pages=base_pages(make),
        )
        before = {}

        def watch(engine, before=before):
            nonlocal crossed
            audit(engine)
            for request in engine.scheduler.running.values():
                start = before.get(request.request_id)
                steps = request.num_computed - (start or 0)
                if start is not None and start >= len(request.prompt_token_ids):
                    seen.add((start % grid, steps))
                    crossed += request.num_computed // grid - start // grid >= 2
                before[request.request_id] = request.num_computed

        got = generate(engine, watch)
        for request_id, completion in want.items():
            assert got[request_id].token_ids == completion.token_ids
            assert got[request_id].logprobs == completion.logprobs
        assert_nothing_is_owned(engine)
        assert engine.metrics().published > 10
    missing = set(itertools.product(range(grid), range(1, 7))) - seen
    assert not missing
    assert crossed or grid == 16


def base_pages(make) -> int:
    """Pages of the pool but for those that `recompute` takes."""
    engine = make()
    return engine.config.num_kv_pages - -(-LONGEST // engine.config.kv_cache_page_size)


@slow
@pytest.mark.parametrize("method", ["mtp", "ngram"])
def test_the_next_turn_hits_what_was_generated_with_drafts(make, method):
    engine, turns = make(method, 3), []
    text, hit = tokens(7), 0
    for turn in range(5):
        (got,) = outputs_of(engine, {"a": text}, NEW).values()
        assert got.num_cached_tokens == hit
        hit = (len(text) + NEW - 1) // GRID * GRID
        assert hit > len(text)
        turns.append((text, got))
        text = [*text, *got.outputs[0].token_ids, *tokens(3, seed=turn)]
    plain = make(method, 3, **NO_CACHE)
    for text, got in turns:
        (cold,) = outputs_of(plain, {"a": text}, NEW).values()
        assert got.outputs[0].token_ids == cold.outputs[0].token_ids
        counts = got.num_drafted_tokens, got.num_accepted_tokens
        assert counts == (cold.num_drafted_tokens, cold.num_accepted_tokens)


NO_CACHE = {"enable_prefix_caching": False, "mamba_cache_mode": "none", "mamba_block_size": None}


@slow
@pytest.mark.parametrize("mode", ["align", "all"])
@pytest.mark.parametrize("page_size_of_grid", [4, 8, 16, 12])
def test_drafts_after_a_hit_are_those_without_a_cache(make, mode, page_size_of_grid):
    """Prompts that part at, before and after the ends of pages and blocks, in many orders."""
    trunk = tokens(40, seed=3)
    prompts = [
        [*trunk[:length], *tokens(1 + length % 5, seed=100 * length + other)]
        for length in (7, 8, 15, 16, 17, 24, 31, 32, 33)
        for other in range(3)
    ]
    prompts += prompts[::-1]
    engine = make("mtp", 4, mamba_cache_mode=mode, mamba_block_size=page_size_of_grid)
    plain = make("mtp", 4, **NO_CACHE)

    def drafted(one, prompt):
        one.add_request("a", prompt, SamplingParams(max_tokens=7, ignore_eos=True))
        found = []
        while one.has_unfinished:
            outputs = one.step()
            running = one.scheduler.running.get("a")
            found.append(running.drafts if running else outputs[0].outputs[0].token_ids)
        return [list(f) for f in found if f]

    want = [drafted(plain, prompt) for prompt in prompts]
    assert [drafted(engine, prompt) for prompt in prompts] == want
    assert engine.metrics().prefix_cache_hits > 200
    assert_nothing_is_owned(engine)


@slow
def test_rows_that_wait_for_the_head_are_caught_up(make):
    """A request without drafts leaves pages that one with drafts can use, and may draft itself."""
    prompt, few = tokens(21, seed=4), {"num_speculative_tokens": 0}
    engine = make("mtp", 3)
    quiet = SamplingParams(max_tokens=50, ignore_eos=True, speculative_config=few)
    (out,) = outputs_of_params(engine, {"a": prompt}, quiet)
    assert out.num_drafted_tokens == 0
    text = [*prompt, *out.outputs[0].token_ids, 5]
    (got,) = outputs_of(engine, {"b": text}, NEW).values()
    assert got.num_cached_tokens == (len(text) - 2) // GRID * GRID
    (cold,) = outputs_of(make("mtp", 3, **NO_CACHE), {"b": text}, NEW).values()
    assert got.outputs[0].token_ids == cold.outputs[0].token_ids
    assert got.num_accepted_tokens == cold.num_accepted_tokens
    assert got.num_drafted_tokens == cold.num_drafted_tokens > 0


def outputs_of_params(engine: Engine, requests: dict, params: SamplingParams) -> list:
    outputs = [engine.add_request(i, p, params) for i, p in requests.items()]
    while engine.has_unfinished:
        engine.step()
        check(engine)
    return outputs


@slow
@pytest.mark.parametrize("method", ["mtp", "ngram"])
@pytest.mark.parametrize("mode, loop", [("none", "simple"), ("all", "overlapped")])
def test_the_smallest_pools_finish_fifty_requests(make, method, mode, loop):
    trunk = tokens(30, seed=1)
    requests = {str(i): [*trunk[: 3 + 7 * i % 27], *tokens(1 + i % 5, seed=i)] for i in range(50)}
    want = {i: o.outputs[0].token_ids for i, o in outputs_of(make(**NO_CACHE), requests, 6).items()}
    pages = -(-(max(map(len, requests.values())) + 5) // 16) + 1
    for slots, budget in ((1 + MOST, 512), (3, 7), (1, 2)):
        small = make(
            method,
            MOST,
            mamba_cache_mode=mode,
            step_loop=loop,
            num_state_slots=slots,
            num_kv_pages=pages,
            max_model_len=48,
            max_num_batched_tokens=budget,
        )
        got = outputs_of(small, requests, 6)
        assert {i: o.outputs[0].token_ids for i, o in got.items()} == want
        assert_nothing_is_owned(small)


@slow
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("method", ["mtp", "ngram"])
def test_abort_preempt_and_reset_at_every_step(make, method, loop):
    trunk = tokens(21, seed=2)
    requests = {"a": trunk, "b": [*trunk[:13], 5], "c": trunk, "d": [7]}
    options = {"max_num_batched_tokens": 12, "max_num_seqs": 3}
    want = outputs_of(make(**NO_CACHE), requests, NEW)
    for act, when in itertools.product(("abort", "preempt", "reset"), range(9)):
        engine = make(method, 3, step_loop=loop, **options)

        def disturb(step, act=act, when=when, engine=engine):
            if step == when and act == "abort":
                engine.abort("b")
            elif step == when and act == "reset":
                engine.reset_prefix_cache()
            elif step == when:
                for request_id in list(engine.scheduler.running):
                    engine.preempt(request_id)
            check(engine)

        got = outputs_of(engine, requests, NEW, disturb)
        for request_id in requests.keys() - ({"b"} if act == "abort" else set()):
            mine, yours = got[request_id].outputs[0], want[request_id].outputs[0]
            assert mine.token_ids == yours.token_ids, (act, when, request_id)
        assert_nothing_is_owned(engine)


@slow
@pytest.mark.parametrize("loop", LOOPS)
def test_a_text_ends_inside_an_accepted_run(make, scripted, loop):
    """End tokens, stop tokens, max_tokens and max_model_len: nothing beyond is kept anywhere."""
    prompt = tokens(11, seed=6)
    (plain,) = outputs_of(make(**NO_CACHE), {"a": prompt}, 40).values()
    text = plain.outputs[0].token_ids
    at = next(i for i in range(9, 30) if text[i] not in text[:i])
    for limits, count, reason in (
        ({"max_tokens": 40, "stop_token_ids": [text[at]]}, at + 1, "stop"),
        ({"max_tokens": 7}, 7, "length"),
        ({"max_tokens": 1}, 1, "length"),
        ({"max_tokens": 2}, 2, "length"),
        (
            # Text and end are others then; they must be the same ones.
            {"max_tokens": 40, "min_tokens": 6, "stop_token_ids": text[2:20]},
            None,
            None,
        ),
    ):
        params = SamplingParams(ignore_eos=True, logprobs=0, **limits)
        (want,) = outputs_of_params(make(**NO_CACHE), {"a": prompt}, params)
        if count is not None:
            assert len(want.outputs[0].token_ids) == count
        known = [*prompt, *want.outputs[0].token_ids, *text[len(want.outputs[0].token_ids) :]]
        drafter = ScriptedDrafter({"a": known}, lambda r, n, k: (k, k))
        engine = scripted(drafter, 5, step_loop=loop)
        (got,) = outputs_of_params(engine, {"a": prompt}, params)
        assert got.outputs[0] == want.outputs[0]
        assert reason is None or got.outputs[0].finish_reason == reason
        assert len(got.outputs[0].logprobs) == len(got.outputs[0].token_ids)
        assert engine.metrics().generation_tokens == len(got.outputs[0].token_ids)
        # The state of what was dropped is in no checkpoint.
        kept = [*prompt, *got.outputs[0].token_ids]
        cache = engine.scheduler.cache
        assert cache.slots.cached == (len(kept) - 1) // GRID
        assert_nothing_is_owned(engine)


@slow
def test_the_length_limit_of_the_model_inside_a_run(make, scripted):
    prompt = tokens(LONGEST - 10, seed=7)
    (want,) = outputs_of(make(**NO_CACHE), {"a": prompt}, 10).values()
    known = [*prompt, *want.outputs[0].token_ids]
    engine = scripted(ScriptedDrafter({"a": known}, lambda r, n, k: (k, k)), 5)
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    (got,) = outputs_of_params(engine, {"a": prompt}, params)
    assert got.outputs[0].token_ids == want.outputs[0].token_ids
    assert got.outputs[0].finish_reason == "length"
    assert len(known) == LONGEST
    assert engine.metrics().num_steps == 3  # the prompt, 1 + 5 drafts, 1 + 3


@slow
def test_what_a_drafter_gets_wrong_costs_drafts_only(make, base, tiny_folder):
    prompt = tokens(9, seed=8)
    (want,) = outputs_of(make(**NO_CACHE), {"a": prompt}, NEW).values()
    for answer in ([600], [-1], ["x"], [1.5], list(range(50)), None, ValueError("no"), [None]):
        lines: list[str] = []

        class Bad:
            def propose(self, request_id, token_ids, k, answer=answer):
                if isinstance(answer, Exception):
                    raise answer
                return answer

        engine = make(
            speculative_config={"method": "custom", "num_speculative_tokens": 3}, drafter=Bad()
        )
        engine.speculator.drafter._on_warning = lines.append
        engine.speculator.control._adaptive = False
        (got,) = outputs_of(engine, {"a": prompt}, NEW).values()
        assert got.outputs[0].token_ids == want.outputs[0].token_ids
        assert len(lines) == 1 and "the drafter" in lines[0], lines
        assert_nothing_is_owned(engine)


@slow
def test_counts_of_drafts(make, scripted):
    prompt = tokens(9, seed=9)
    (plain,) = outputs_of(make(**NO_CACHE), {"a": prompt}, 13).values()
    known = [*prompt, *plain.outputs[0].token_ids]
    # After the first token: 2 of 3 right, 0 of 3, 3 of 3, 1 of 1 asked for, ...
    rights = iter([2, 0, 3, 2])
    engine = scripted(ScriptedDrafter({"a": known}, lambda r, n, k: (next(rights), k)), 3)
    (got,) = outputs_of(engine, {"a": prompt}, 13).values()
    m = engine.metrics()
    # 1 + 3 + 1 + 4 = 9 tokens, then 3 of 4 left by 1 + 2, then one with none.
    assert m.spec_decode_num_drafts == 4
    assert m.spec_decode_num_draft_tokens == 12 == got.num_drafted_tokens
    assert m.spec_decode_num_accepted_tokens == 7 == got.num_accepted_tokens
    assert m.spec_decode_num_accepted_tokens_per_pos == (3, 3, 1)
    assert m.acceptance_length == 1 + 7 / 4


@slow
def test_a_request_may_lower_the_number_of_drafts(make):
    prompt = tokens(9, seed=10)
    for count in range(4):
        engine = make("mtp", 3)
        params = SamplingParams(
            max_tokens=NEW,
            ignore_eos=True,
            speculative_config={"num_speculative_tokens": count},
        )
        (got,) = outputs_of_params(engine, {"a": prompt}, params)
        m = engine.metrics()
        assert len(m.spec_decode_num_accepted_tokens_per_pos) == count
        assert (got.num_drafted_tokens > 0) == (count > 0)
