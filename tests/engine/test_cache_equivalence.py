"""Tokens and log probabilities to the last bit, whatever is cached, cut, mixed or preempted.

`COACHWHIP_FULL_MATRIX=1` runs every kind of model over every budget and batch.
"""

import itertools
import os

import pytest

from coachwhip import ConfigError, EngineError, RequestError, SamplingParams
from coachwhip.config import EngineOptions
from coachwhip.engine import Engine
from coachwhip.verify import LOOPS, make_prompts, outcomes, run, variants
from tests.engine.caching import (
    GRID,
    Poison,
    assert_nothing_is_owned,
    check,
    generate,
    outputs_of,
    slow,
    tokens,
)

NAMES = ["nemotron_dense", "mamba2_g4"]
FULL_MATRIX = bool(int(os.environ.get("COACHWHIP_FULL_MATRIX", 0)))
MATRIX_NAMES = NAMES
if FULL_MATRIX:
    MATRIX_NAMES = [*NAMES, "nemotron_moe", "nemotron_latent_mtp", "mamba2_g1_tied"]
LONGEST = 64
NEW = 9


@pytest.fixture(scope="module")
def engines(tiny_folder):
    """Returns a function: name of a tiny model -> its engine, with pools for all tests here."""
    made: dict[str, Engine] = {}

    def engine(name: str) -> Engine:
        if name not in made:
            options = EngineOptions(
                model=str(tiny_folder(name)),
                dtype="float32",
                max_model_len=LONGEST,
                mamba_block_size=GRID,
                num_state_slots=80,
            )
            made[name] = Engine(options)
        return made[name]

    return engine


@pytest.fixture(params=LOOPS)
def make(engines, request):
    """Returns a function: (name, options) -> a poisoned engine with nothing cached."""

    def engine(name: str = "nemotron_dense", **options) -> Engine:
        base = engines(name)
        made = base.with_options(step_loop=request.param, **options)
        Poison(base)(made)
        return made

    return engine


@slow
@pytest.mark.parametrize("name", MATRIX_NAMES)
def test_no_bit_depends_on_mode_budget_batch_preemption_or_cache(engines, name):
    base = engines(name)
    prompts = make_prompts(512, 30, GRID)
    chosen = variants()
    if name != "nemotron_dense" and not FULL_MATRIX:
        chosen = variants(budgets=(1, 7, 64), batches=(1, 8))
    cached = 0
    for outcome in outcomes(base, prompts, NEW, chosen, prepare=Poison(base), after_step=check):
        assert outcome.equal, f"{outcome.variant}: {outcome.first_difference}"
        if outcome.variant.mode != "none" and outcome.variant.start != "cold":
            assert outcome.cached_tokens > 0, outcome.variant
        cached += outcome.cached_tokens
        assert bool(outcome.preemptions) == outcome.variant.preempt
    assert cached > 1000


@slow
@pytest.mark.parametrize("mode, grid", [("align", 4), ("all", 4), ("all", 5), ("align", 16)])
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_sent_again_hits_and_says_the_same(make, name, mode, grid):
    engine = make(name, mamba_cache_mode=mode, mamba_block_size=grid)
    for length in (*range(1, 14), 16, 17, 33):
        prompt = tokens(length, seed=length)
        runs = [outputs_of(engine, {"a": prompt}, 5)["a"] for _ in range(2)]
        assert [r.num_cached_tokens for r in runs] == [0, (length - 1) // grid * grid]
        assert runs[0].outputs[0].token_ids == runs[1].outputs[0].token_ids


@slow
@pytest.mark.parametrize("mode, loop", [("align", "overlapped"), ("all", "simple")])
@pytest.mark.parametrize("name", NAMES)
def test_every_checkpoint_is_what_a_new_computation_gives(tiny_folder, name, mode, loop):
    """`audit_state` compares on publish and on hit, and finds a bit that was flipped."""
    options = {"dtype": "float32", "max_model_len": LONGEST, "mamba_block_size": GRID}
    engine = Engine(
        EngineOptions(
            str(tiny_folder(name)),
            audit_state=True,
            mamba_cache_mode=mode,
            step_loop=loop,
            **options,
        )
    )
    prompts = make_prompts(512, 30, GRID)
    for _ in range(2):
        run(engine, prompts, NEW, preempt=True, after_step=check)
    metrics = engine.metrics()
    assert metrics.published >= 20 and metrics.restored > 5
    cache, prompt = engine.scheduler.cache, prompts[0]
    hit = cache.lookup(cache.prefix((), lambda begin, end: prompt[begin:end]), len(prompt))
    assert hit.length == 28
    raw = engine.runner.slot_pools[1].to_numpy()
    raw[hit.slot].view("int32")[0, 0, 0] ^= 1
    with pytest.raises(EngineError, match="checkpoint of 28 tokens restored for 0"):
        run(engine, [prompt], 1)
    engine.abort("0")
    assert_nothing_is_owned(engine)


@slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["align", "all"])
def test_conversations_hit_the_generated_text(make, name, mode):
    engine = make(name, mamba_cache_mode=mode)
    text, hit, asked = tokens(7), 0, []
    for turn in range(4):
        out = outputs_of(engine, {"a": text}, NEW)["a"]
        assert out.num_cached_tokens == hit
        hit = (len(text) + NEW - 1) // GRID * GRID
        assert hit > len(text)
        asked.append((list(text), out.outputs[0].token_ids))
        text = [*text, *out.outputs[0].token_ids, *tokens(3, seed=turn)]
    plain = make(name, enable_prefix_caching=False, mamba_cache_mode="none")
    for prompt, ids in asked:
        assert outputs_of(plain, {"a": prompt}, NEW)["a"].outputs[0].token_ids == ids


@slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_the_smallest_pools_finish_fifty_requests(engines, make, name, mode):
    base = engines(name)
    trunk = tokens(30, seed=1)
    prompts = [[*trunk[: 3 + 7 * i % 27], *tokens(1 + i % 5, seed=i)] for i in range(50)]
    requests = {str(i): p for i, p in enumerate(prompts)}
    plain = make(name, enable_prefix_caching=False, mamba_cache_mode="none")
    want = {i: o.outputs[0].token_ids for i, o in outputs_of(plain, requests, 6).items()}
    pages = None
    if base.config.num_kv_pages:
        pages = -(-(max(map(len, prompts)) + 5) // base.config.kv_cache_page_size) + 1
    for slots, budget in ((2, 512), (1, 7), (3, 3)):
        small = make(
            name,
            mamba_cache_mode=mode,
            num_state_slots=slots,
            num_kv_pages=pages,
            max_model_len=48,
            max_num_batched_tokens=budget,
        )
        got = outputs_of(small, requests, 6)
        assert {i: o.outputs[0].token_ids for i, o in got.items()} == want
        assert_nothing_is_owned(small)


@slow
@pytest.mark.parametrize("mode", ["none", "all"])
def test_abort_and_reset_at_every_step(make, mode):
    trunk = tokens(21, seed=2)
    requests = {"a": trunk, "b": [*trunk[:13], 5], "c": trunk, "d": [7]}
    engine = make(mamba_cache_mode=mode, max_num_batched_tokens=8, max_num_seqs=3)
    want = outputs_of(engine, requests, 6)
    for victim, when in itertools.product("abc", range(12)):

        def act(step, victim=victim, when=when):
            if step == when:
                engine.abort(victim)
                check(engine)
            if step == when + 1:
                engine.reset_prefix_cache()
                check(engine)

        got = outputs_of(engine, requests, 6, act)
        for request_id in requests.keys() - {victim}:
            mine, yours = got[request_id].outputs[0], want[request_id].outputs[0]
            assert mine.token_ids == yours.token_ids, (victim, when)
        assert_nothing_is_owned(engine)


@slow
def test_an_abort_while_a_step_runs_publishes_nothing_of_it(make, monkeypatch):
    engine = make(max_num_batched_tokens=512)
    execute = type(engine.runner).execute
    prompt = tokens(21, seed=3)
    (want,) = generate(make(), [prompt], NEW)

    def aborting(runner, plan, sampled, *on_launch):
        out = execute(runner, plan, sampled, *on_launch)
        engine.abort("a")
        return out

    monkeypatch.setattr(type(engine.runner), "execute", aborting)
    assert outputs_of(engine, {"a": prompt}, NEW) == {}
    monkeypatch.undo()
    assert_nothing_is_owned(engine)
    assert engine.metrics().published == 0
    assert generate(engine, [prompt], NEW) == [want]


@slow
def test_a_step_that_fails_ends_its_requests_and_spoils_nothing(make, monkeypatch):
    """A graph that failed may have written any state of its requests, so they end; what was kept
    before stays right, and nothing leaks."""
    engine = make(mamba_block_size=5)
    prompts = make_prompts(512, 30, 5)
    want = generate(make(enable_prefix_caching=False, mamba_cache_mode="none"), prompts, NEW)
    run(engine, prompts, 1)
    execute, count = type(engine.runner).execute, itertools.count()

    def failing(runner, plan, sampled, *on_launch):
        if next(count) % 5 == 4:
            raise EngineError("the device is gone")
        return execute(runner, plan, sampled, *on_launch)

    monkeypatch.setattr(type(engine.runner), "execute", failing)
    outputs = [
        engine.add_request(str(i), prompt, SamplingParams(max_tokens=NEW, ignore_eos=True))
        for i, prompt in enumerate(prompts)
    ]
    failures = 0
    while engine.has_unfinished:
        try:
            engine.step()
        except EngineError:
            failures += 1
        check(engine)
    assert failures and "error" in {o.outputs[0].finish_reason for o in outputs}
    assert_nothing_is_owned(engine)
    monkeypatch.undo()
    assert run(engine, prompts, NEW, after_step=check) == want
    assert engine.metrics().restored


@slow
def test_identical_prompts_in_one_step(make):
    engine = make(max_num_seqs=8)
    prompt = tokens(21, seed=4)
    got = outputs_of(engine, {str(i): prompt for i in range(8)}, NEW)
    assert len({tuple(o.outputs[0].token_ids) for o in got.values()}) == 1
    assert all(o.num_cached_tokens == 0 for o in got.values())
    assert outputs_of(engine, {"x": prompt}, 1)["x"].num_cached_tokens == 20
    assert_nothing_is_owned(engine)


@slow
def test_metrics_count_what_happened(make):
    engine = make()
    prompt = tokens(21, seed=5)
    outputs_of(engine, {"a": prompt}, 3)
    outputs_of(engine, {"b": prompt}, 3)
    m = engine.metrics()
    assert (m.prefix_cache_queries, m.prefix_cache_hits) == (42, 20)
    assert m.prefix_miss_total["no_state"] == 1 == m.restored
    assert m.published == m.slots_checkpoint == 5
    assert (m.slots_live, m.num_requests_running, m.num_requests_waiting) == (0, 0, 0)
    assert (m.prompt_tokens, m.generation_tokens) == (42, 6)
    assert m.slots_total == 80 and m.page_copies == 1
    seconds = m.step_seconds
    assert seconds.execute > seconds.plan > 0 and seconds.commit > 0 and seconds.tensors > 0
    assert m.as_dict()["step_seconds"]["execute"] == seconds.execute
    engine.reset_prefix_cache()
    assert engine.metrics().slots_checkpoint == engine.metrics().pages_cached == 0
    assert outputs_of(engine, {"c": prompt}, 3)["c"].num_cached_tokens == 0


def test_contradictions_and_useless_options_are_said_before_weights_load(tiny_folder):
    folder = str(tiny_folder("nemotron_dense"))
    for options, field, part in (
        ({"mamba_block_size": 3}, "mamba_block_size", "from 4"),
        ({"mamba_cache_mode": "some"}, "mamba_cache_mode", "align"),
        ({"num_state_slots": 0}, "num_state_slots", "from 1"),
        ({"enable_prefix_caching": False, "mamba_cache_mode": "all"}, "mamba_cache_mode", "none"),
        ({"enable_prefix_caching": True, "mamba_cache_mode": "none"}, "mamba_cache_mode", "pages"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy", "fcfs"),
        ({"audit_state": True, "dtype": "bfloat16"}, "audit_state", "float32"),
        ({"num_kv_pages": 3, "max_model_len": 80}, "num_kv_pages", "give 5"),
    ):
        with pytest.raises(ConfigError) as error:
            Engine(EngineOptions(folder, **{"dtype": "float32", **options}))
        assert error.value.field == field
        assert part in str(error.value)


@slow
def test_options_that_cannot_help_are_warned_of_with_the_number_that_would(engines):
    base = engines("nemotron_dense")
    for options, part in (
        ({"mamba_block_size": 63}, "give at most 62"),
        ({"num_state_slots": 3}, "at most 3 requests run at a time, not max_num_seqs = 8"),
        (
            {"mamba_block_size": 8, "enable_prefix_caching": False, "mamba_cache_mode": "none"},
            "no effect: prefix caching is off",
        ),
    ):
        (warning,) = base.with_options(**options).config.warnings
        assert part in warning
    assert base.with_options(mamba_block_size=62).config.warnings == ()


@slow
def test_priorities_and_salts_are_checked_and_kept(make):
    engine = make()
    for options, field in (
        ({"priority": 1}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": 5}, "cache_salt"),
    ):
        with pytest.raises(RequestError) as error:
            engine.add_request("a", [1], **options)
        assert error.value.field == field
        assert not engine.has_unfinished
    assert_nothing_is_owned(engine)
