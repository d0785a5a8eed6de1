"""A second model as a drafter: it changes no bit, and as its own drafter a model is never wrong.

`COACHWHIP_FULL_MATRIX=1` runs every budget and batch.
"""

import itertools
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from coachwhip import CheckpointError, ConfigError, EngineError, SamplingParams
from coachwhip.checkpoint import read_model
from coachwhip.config import EngineOptions, Machine, examine, weight_bytes
from coachwhip.engine import Engine
from coachwhip.speculate import draft_model
from coachwhip.speculate.build import DraftModelSource
from coachwhip.speculate.draft_model import DraftModelDrafter
from coachwhip.verify import make_prompts, outcomes, params_of, variants
from tests.engine import caching
from tests.engine.caching import GRID, Poison, assert_nothing_is_owned, slow, tokens
from tests.reference.checkpoints import random_tensors, write_checkpoint
from tests.reference.nemotron_h import Reference
from tests.reference.tiny_configs import TINY_CONFIGS

FULL_MATRIX = bool(int(os.environ.get("COACHWHIP_FULL_MATRIX", 0)))
TARGETS = ["nemotron_dense", "nemotron_latent_mtp"]
OTHERS = ["nemotron_dense", "nemotron_moe", "mamba2_g4", "attention_only"]
LONGEST = 96
NEW = 12
NO_CACHE = {"enable_prefix_caching": False, "mamba_cache_mode": "none", "mamba_block_size": None}
CONFIGS = TINY_CONFIGS | {
    "attention_only": TINY_CONFIGS["nemotron_dense"] | {"hybrid_override_pattern": "*-*-"},
    "short": TINY_CONFIGS["nemotron_dense"] | {"max_position_embeddings": 48},
    "other_vocabulary": TINY_CONFIGS["mamba2_g4"] | {"vocab_size": 500},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a function: name -> folder of a checkpoint with random weights."""
    made = {}

    def find(name: str) -> str:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            write_checkpoint(made[name], CONFIGS[name])
        return str(made[name])

    return find


def drafting(model: str, count: int = 3, **more) -> dict:
    """Returns the option for drafts of a model that does not adapt."""
    config = {"method": "draft_model", "model": model, "num_speculative_tokens": count}
    return {"speculative_config": config | {"adaptive": False} | more}


@pytest.fixture(scope="module")
def bases(folder):
    """Returns a function: name of the model -> an engine without speculation."""
    made: dict[str, Engine] = {}

    def engine(name: str) -> Engine:
        if name not in made:
            made[name] = Engine(
                EngineOptions(
                    model=folder(name),
                    dtype="float32",
                    max_model_len=LONGEST,
                    mamba_block_size=GRID,
                    num_state_slots=160,
                )
            )
        return made[name]

    return engine


@pytest.fixture
def make(bases, folder):
    """Returns a function: (draft model or None, drafts, options) -> a poisoned engine."""

    def engine(
        draft: str | None = None, count: int = 3, name: str = "nemotron_dense", **options
    ) -> Engine:
        base = bases(name)
        if draft is not None:
            # Who loads a model decides how large its pools are: let it be an engine that caches.
            base.with_options(**drafting(folder(draft)))
            options = drafting(folder(draft), count) | options
        made = base.with_options(**options)
        poison(made)
        return made

    return engine


def drafter_of(engine: Engine) -> DraftModelDrafter | None:
    return None if engine.speculator is None else engine.speculator.drafter


def poison(engine: Engine) -> None:
    """Fills what is free with NaN, in the draft model's pools as well."""
    Poison(engine)(engine)
    drafter = drafter_of(engine)
    if drafter is not None:
        part = SimpleNamespace(
            runner=drafter.runner, scheduler=SimpleNamespace(cache=drafter.cache)
        )
        Poison(part)(part)


def check(engine: Engine) -> None:
    """Raises AssertionError unless everything is owned once, the draft model's homes as well, by
    requests that run."""
    caching.check(engine)
    drafter = drafter_of(engine)
    if drafter is not None:
        drafter.check()
        assert drafter._followed.keys() <= engine.scheduler.running.keys()


def assert_no_draft_home_is_owned(engine: Engine) -> None:
    assert_nothing_is_owned(engine)
    check(engine)
    for pool in (drafter_of(engine).cache.slots, drafter_of(engine).cache.pages):
        assert pool is None or pool.owned == 0, f"{pool.name} leaked"


def run(engine: Engine, requests: dict[str, list[int]], params, at_step=None) -> dict:
    """Runs named requests, the i-th with `params` or with `params[i]`; returns their outputs."""
    for i, (request_id, prompt) in enumerate(requests.items()):
        one = params if isinstance(params, SamplingParams) else params[i]
        engine.add_request(request_id, prompt, one)
    outputs, step = {}, 0
    while engine.has_unfinished:
        if at_step is not None:
            at_step(step)
        outputs |= {o.request_id: o for o in engine.step()}
        check(engine)
        step += 1
        assert step < 10_000, "no progress"
    return outputs


def results(outputs: dict) -> dict:
    return {i: (o.outputs[0].token_ids, o.outputs[0].logprobs) for i, o in outputs.items()}


def drafted(outputs: dict) -> tuple[int, int]:
    """Returns how many drafts were verified, and how many were right."""
    return (
        sum(o.num_drafted_tokens for o in outputs.values()),
        sum(o.num_accepted_tokens for o in outputs.values()),
    )


class CountRows:
    """Counts the rows that a draft model computes."""

    def __init__(self, drafter: DraftModelDrafter, monkeypatch) -> None:
        self.rows = 0
        execute = drafter.runner.execute

        def counted(plan, sampled=None):
            self.rows += plan.num_tokens
            return execute(plan, sampled)

        monkeypatch.setattr(drafter.runner, "execute", counted)


@slow
@pytest.mark.parametrize("mode", ["none", "align", "all"])
@pytest.mark.parametrize("name", TARGETS)
def test_a_model_is_never_wrong_about_itself(folder, name, mode):
    """The test of exact roll-back: half of the prompts sampled, with filters and penalties, in
    every chunk budget and batch, with preemption, cold and warm, every draft is right."""
    base = Engine(
        EngineOptions(
            model=folder(name),
            dtype="float32",
            max_model_len=LONGEST,
            mamba_block_size=GRID,
            num_state_slots=160,
            **drafting(folder(name), 5),
        )
    )
    cuts = {}
    if not FULL_MATRIX:
        cuts = {"budgets": (1, 3, 16, 512), "batches": (1, 8)}
        if name != "nemotron_dense":
            cuts = {"budgets": (3, 64, 512), "batches": (8,)}
    chosen = variants([mode], speculations=[("draft_model", k) for k in range(1, 6)], **cuts)
    engines, total = [], 0

    def prepare(engine: Engine) -> None:
        poison(engine)
        engines.append(engine)

    prompts = make_prompts(512, 30, GRID)
    for outcome in outcomes(base, prompts, NEW, chosen, prepare=prepare, after_step=check):
        assert outcome.equal, f"{outcome.variant}: {outcome.first_difference}"
        assert outcome.drafted == outcome.accepted, outcome.variant
        assert (outcome.drafted > 0) == (outcome.variant.budget > 1), outcome.variant
        total += outcome.drafted
    assert total > 500
    hits = [
        drafter_of(e).cache.stats.hits for e in engines[1:] if e.config.max_num_batched_tokens > 1
    ]
    assert all((hit > 0) == (mode != "none") for hit in hits)
    for engine in engines[1:]:
        assert_no_draft_home_is_owned(engine)


@slow
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_long_texts_need_no_step_that_drafts_could_save(folder, count):
    options = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 4}
    model = folder("nemotron_dense")
    plain = Engine(EngineOptions(model=model, **options))
    engine = Engine(EngineOptions(model=model, **options, **drafting(model, count)))
    poison(engine)
    requests = {str(i): tokens(5 + 20 * i, seed=i) for i in range(4)}
    params = [
        SamplingParams(max_tokens=400, ignore_eos=True, logprobs=1, seed=3, **kind)
        for kind in (
            {},
            {"temperature": 1.0},
            {"temperature": 0.7, "top_p": 0.9},
            # What a draft is depends on those before it.
            {"logit_bias": {7: 100.0, 8: 99.0}, "frequency_penalty": 0.5, "presence_penalty": 0.3},
        )
    ]
    want = run(plain, requests, params)
    got = run(engine, requests, params)
    assert results(got) == results(want)
    right, all_drafts = drafted(got)
    assert right == all_drafts
    # The prompts together, then 399 tokens in runs of count + 1.
    assert engine.metrics().num_steps == 1 + -(-399 // (count + 1))
    assert_no_draft_home_is_owned(engine)


@slow
@pytest.mark.parametrize("draft", OTHERS)
@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_no_bit_depends_on_another_model(make, draft, mode):
    requests = {str(i): p for i, p in enumerate(make_prompts(512, 30, GRID))}
    params = [params_of(i, NEW) for i in range(len(requests))]
    grid = {"mamba_block_size": GRID if mode != "none" else None}
    want = {n: results(run(make(None, name=n, **NO_CACHE), requests, params)) for n in TARGETS}
    counts, total = range(1, 6), 0
    turns = zip(counts, itertools.cycle((3, 16, 512)), itertools.cycle(TARGETS), strict=False)
    if FULL_MATRIX:
        turns = itertools.product(counts, (3, 7, 16, 64, 512), TARGETS)
    for count, budget, name in turns:
        engine = make(
            draft,
            count,
            name=name,
            mamba_cache_mode=mode,
            max_num_batched_tokens=budget,
            **grid,
        )
        for _ in range(2):
            got = run(engine, requests, params, preempts(engine))
            assert results(got) == want[name], (count, budget)
            total += drafted(got)[0]
        assert_no_draft_home_is_owned(engine)
    assert total > 700


def preempts(engine: Engine):
    """Returns what sends a running request back to the queue before every third step."""
    times: Counter = Counter()

    def at_step(step: int) -> None:
        running = [r for r in engine.scheduler.running if times[r] < 2]
        if step % 3 == 2 and running:
            victim = running[step % len(running)]
            times[victim] += 1
            engine.preempt(victim)
            assert victim not in drafter_of(engine)._followed
            check(engine)

    return at_step


@slow
@pytest.mark.parametrize("budget", [512, 5])
@pytest.mark.parametrize("draft", OTHERS)
def test_drafts_equal_the_reference_of_the_draft_model(make, folder, draft, budget):
    target, reference = (Reference.from_folder(Path(folder(n))) for n in ("nemotron_dense", draft))
    engine = make(draft, 4, max_num_batched_tokens=budget)
    for length in (1, 2, 3, 17, 33, 64):
        prompt = tokens(length, seed=length)
        engine.add_request("a", prompt, SamplingParams(max_tokens=6, ignore_eos=True))
        while not engine.scheduler.running.get("a", SimpleNamespace(drafts=())).drafts:
            engine.step()
        drafts = engine.scheduler.running["a"].drafts
        engine.abort("a")
        check(engine)
        (token,) = target.greedy(prompt, 1)
        assert drafts == reference.greedy([*prompt, token], 4)


@slow
@pytest.mark.parametrize("draft", ["nemotron_dense", "mamba2_g4", "attention_only"])
def test_a_prompt_sent_again_is_not_computed_again(make, draft, monkeypatch):
    prompt = tokens(50, seed=1)
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    three = replace(params, max_tokens=3)  # one draft
    for mode, again in (("none", 51), ("align", 3), ("all", 3)):
        engine = make(draft, 1, mamba_cache_mode=mode, max_num_batched_tokens=16)
        count = CountRows(drafter_of(engine), monkeypatch)
        run(engine, {"a": prompt}, three)
        assert count.rows == 51
        run(engine, {"b": prompt}, three)
        if draft == "attention_only" and mode != "none":
            again = 51 - 48  # whole pages
        assert count.rows == 51 + again, mode
        engine.reset_prefix_cache()
        run(engine, {"c": prompt}, three)
        assert count.rows == 51 + again + 51, mode
        monkeypatch.undo()


def resize(engine: Engine, slots: int, pages: int) -> None:
    """Gives the draft model fewer slots and pages than it has."""
    runner = drafter_of(engine).runner
    config = replace(
        drafter_of(engine)._config,
        num_state_slots=min(slots, runner.config.num_state_slots),
        num_kv_pages=min(pages, runner.config.num_kv_pages),
    )
    engine.speculator.drafter = DraftModelDrafter(runner, config)


@slow
@pytest.mark.parametrize(
    "slots, pages", [(1, 99), (2, 99), (3, 99), (99, 6), (99, 7), (5, 9), (2, 2)]
)
@pytest.mark.parametrize("mode", ["none", "all"])
def test_small_pools_of_the_draft_model_cost_drafts_only(make, slots, pages, mode):
    trunk = tokens(30, seed=1)
    requests = {str(i): [*trunk[: 3 + 7 * i % 27], *tokens(1 + i % 5, seed=i)] for i in range(20)}
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    grid = {"mamba_block_size": GRID if mode == "all" else None}
    options = {"mamba_cache_mode": mode, "max_num_seqs": 4, **grid}
    want = results(run(make(**NO_CACHE), requests, params))
    full = make("nemotron_dense", 4, **options)
    run(full, requests, params)
    small = make("nemotron_dense", 4, **options)
    resize(small, slots, pages)
    poison(small)
    got = run(small, requests, params)
    assert results(got) == want
    count, right = drafted(got)
    assert count == right
    assert small.metrics().num_steps > full.metrics().num_steps
    # Two pages have room for no request. Slots go to texts first, then to what drafts lead to.
    assert (count > 0) == (pages > 2)
    deepest = len(small.metrics().spec_decode_num_accepted_tokens_per_pos)
    assert deepest == (0 if pages == 2 else 1 if slots <= 2 else 4)
    assert_no_draft_home_is_owned(small)


@slow
def test_two_slots_for_each_request_are_enough_for_all_drafts(make):
    """Though checkpoints take slots as well: they get what drafts leave."""
    requests = {str(i): tokens(10 + i, seed=i) for i in range(4)}
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    steps = []
    for slots in (8, 99):
        engine = make("nemotron_dense", 4, max_num_seqs=4)
        resize(engine, slots, 99)
        run(engine, requests, params)
        steps.append(engine.metrics().num_steps)
        assert drafter_of(engine).cache.stats.published > 0
    assert steps == [1 + -(-39 // 5)] * 2


@slow
def test_texts_longer_than_the_draft_model_allows(make):
    engine = make("nemotron_dense", 5)
    short = replace(drafter_of(engine)._config, max_model_len=48)
    engine.speculator.drafter = DraftModelDrafter(drafter_of(engine).runner, short)
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    for length in (1, 30, 45, 46, 47, 48, 60):
        request = {"a": tokens(length, seed=length)}
        want = run(make(**NO_CACHE), request, params)
        longest = 0

        def watch(step):
            nonlocal longest
            for running in engine.scheduler.running.values():
                if running.drafts:
                    longest = max(longest, running.num_tokens + len(running.drafts))
                if running.num_tokens > 48:
                    assert not drafter_of(engine)._followed

        got = run(engine, request, params, watch)
        assert results(got) == results(want)
        assert longest == (48 if length < 47 else 0)
        known, count = length + 1, 0
        while known < 48:
            right = min(5, 48 - known)
            known, count = known + right + 1, count + right
        assert drafted(got) == (count, count)
    assert_no_draft_home_is_owned(engine)


@slow
@pytest.mark.parametrize("act", ["abort", "preempt", "reset"])
def test_abort_preempt_and_reset_at_every_step(make, act):
    trunk = tokens(21, seed=2)
    requests = {"a": trunk, "b": [*trunk[:13], 5], "c": trunk, "d": [7]}
    params = SamplingParams(max_tokens=NEW, ignore_eos=True)
    want = results(run(make(**NO_CACHE), requests, params))
    for when in range(9):
        engine = make("nemotron_dense", 3, max_num_batched_tokens=12, max_num_seqs=3)

        def disturb(step, when=when, engine=engine):
            if step != when:
                return
            if act == "abort":
                engine.abort("b")
            elif act == "reset":
                engine.reset_prefix_cache()
            else:
                for request_id in list(engine.scheduler.running):
                    engine.preempt(request_id)
                assert not drafter_of(engine)._followed
            check(engine)

        got = run(engine, requests, params, disturb)
        assert drafted(got)[0] == drafted(got)[1] > 0
        kept = requests.keys() - ({"b"} if act == "abort" else set())
        assert {i: results(got)[i] for i in kept} == {i: want[i] for i in kept}
        assert_no_draft_home_is_owned(engine)


@slow
def test_what_has_a_salt_is_not_found_without(make, monkeypatch):
    prompt = tokens(40, seed=5)
    engine = make("nemotron_dense", 1)
    count, rows = CountRows(drafter_of(engine), monkeypatch), []
    for request_id, salt in enumerate(("x", "x", None, "y", None)):
        before = count.rows
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        engine.add_request(str(request_id), prompt, params, cache_salt=salt)
        while engine.has_unfinished:
            engine.step()
        rows.append(count.rows - before)
    assert rows == [41, 1, 41, 41, 1]


@slow
def test_a_draft_model_that_gives_no_numbers(make, folder, tmp_path):
    poisoned = random_tensors(CONFIGS["nemotron_dense"])
    poisoned["backbone.norm_f.weight"][0] = float("nan")
    write_checkpoint(tmp_path, CONFIGS["nemotron_dense"], tensors=poisoned)
    requests = {str(i): tokens(9 + i, seed=i) for i in range(3)}
    params = SamplingParams(max_tokens=NEW, ignore_eos=True)
    want = run(make(**NO_CACHE), requests, params)
    engine = make(**drafting(str(tmp_path)))
    got = run(engine, requests, params)
    assert results(got) == results(want)
    assert drafted(got) == (0, 0)
    assert_no_draft_home_is_owned(engine)


@slow
@pytest.mark.parametrize("when", range(1, 6))
def test_a_draft_model_that_fails_ends_its_step_alone(make, monkeypatch, when):
    requests = {str(i): tokens(9 + i, seed=i) for i in range(3)}
    params = SamplingParams(max_tokens=NEW, ignore_eos=True)
    engine = make("nemotron_dense", 3)
    want = results(run(engine, requests, params))
    engine = make("nemotron_dense", 3)
    runner, calls = drafter_of(engine).runner, itertools.count(1)
    execute = runner.execute

    def fail(plan, sampled=None):
        if next(calls) == when:
            raise EngineError("the graph failed: on purpose")
        return execute(plan, sampled)

    monkeypatch.setattr(runner, "execute", fail)
    outputs = [engine.add_request(i, p, params) for i, p in requests.items()]
    with pytest.raises(EngineError, match="on purpose"):
        while engine.has_unfinished:
            engine.step()
    assert all(o.error for o in outputs)
    assert_no_draft_home_is_owned(engine)
    assert results(run(engine, requests, params)) == want


@slow
def test_engines_over_the_same_weights_share_a_draft_model(bases, folder):
    base = bases("nemotron_dense")
    first = base.with_options(**drafting(folder("mamba2_g4"), 2))
    runner = drafter_of(first).runner
    second = base.with_options(**drafting(folder("mamba2_g4"), 4), **NO_CACHE)
    third = first.with_options(max_num_batched_tokens=7)
    other = first.with_options(**drafting(folder("nemotron_dense"), 4))
    plain = first.with_options(speculative_config=None)
    assert drafter_of(second).runner is drafter_of(third).runner is runner
    assert drafter_of(other).runner is not runner
    assert plain.speculator is None
    # Each has its own options, and the drafts of another engine are none of its business.
    assert drafter_of(first).cache.mode == drafter_of(third).cache.mode == "all"
    assert drafter_of(second).cache.mode == "none"
    requests = {str(i): tokens(9 + i, seed=i) for i in range(3)}
    params = SamplingParams(max_tokens=NEW, ignore_eos=True)
    want = results(run(plain, requests, params))
    for engine in (first, second, third, other):
        poison(engine)
        got = run(engine, requests, params)
        assert results(got) == want
        assert drafted(got)[0] > 0


@slow
def test_a_draft_model_named_like_the_head(bases, folder, tmp_path, monkeypatch):
    """Models are kept by folder, so that a folder may have any name."""
    write_checkpoint(tmp_path / "mtp", CONFIGS["mamba2_g4"])
    monkeypatch.chdir(tmp_path)
    engine = Engine(
        EngineOptions(
            model=folder("nemotron_latent_mtp"),
            dtype="float32",
            max_model_len=LONGEST,
            num_state_slots=64,
            speculative_config={"method": "mtp", "num_speculative_tokens": 2},
        )
    )
    both = engine.with_options(**drafting("mtp", 2))
    assert isinstance(drafter_of(both), DraftModelDrafter)
    run(both, {"a": tokens(9)}, SamplingParams(max_tokens=NEW, ignore_eos=True))


def refused(options: EngineOptions) -> str:
    """Returns why an engine is not made; nothing is loaded before it is refused."""

    def before_load(engine: Engine) -> None:
        raise AssertionError("refused too late")

    with pytest.raises((ConfigError, CheckpointError)) as caught:
        Engine(options, before_load=before_load)
    return str(caught.value)


def test_a_draft_model_must_have_the_same_vocabulary(folder, tmp_path):
    model, other = folder("nemotron_dense"), folder("other_vocabulary")
    assert refused(EngineOptions(model=model, **drafting(other))) == (
        f"speculative_config.model is {json.dumps(other)}, but must be a model with a vocabulary "
        "of 512 tokens; it has 500; name a draft model of the same family"
    )
    words = [f"w{i}" for i in range(512)]
    for name, order in (("model", words), ("draft", words[::-1]), ("same", words)):
        write_checkpoint(tmp_path / name, CONFIGS["mamba2_g4"])
        vocabulary = {word: i for i, word in enumerate(order)}
        Tokenizer(WordLevel(vocabulary, "w0")).save(str(tmp_path / name / "tokenizer.json"))
    options = EngineOptions(model=str(tmp_path / "model"), **drafting(str(tmp_path / "draft")))
    assert "a model with the same tokens under the same ids; name a draft" in refused(options)
    for draft in ("same", "draft"):  # with no tokenizer of one of them nobody can tell
        if draft == "draft":
            (tmp_path / "model" / "tokenizer.json").unlink()
        source(tmp_path / "model", tmp_path / draft)


def source(model, draft, memory_bytes: int = 8 << 30, **options) -> DraftModelSource:
    model, draft = read_model(model), str(draft)
    options = EngineOptions(model=str(model.path), **drafting(draft), **options)
    machine = Machine(memory_bytes, cores=2)
    found = examine(model.spec, model.dtype, options, machine)
    return DraftModelSource(draft, options, model, found, machine)


def test_a_draft_model_that_is_not_there(folder, tmp_path):
    model = folder("nemotron_dense")
    missing = tmp_path / "missing"
    assert refused(EngineOptions(model=model, **drafting(str(missing)))) == (
        f"speculative_config.model: {missing}: no such folder; give a checkpoint's folder or a hub "
        "id (org/name)"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    message = refused(EngineOptions(model=model, **drafting(str(empty))))
    assert message.startswith(f"speculative_config.model: {empty}: is empty; ")
    write_checkpoint(
        tmp_path / "bad", CONFIGS["nemotron_dense"] | {"hybrid_override_pattern": "MX"}, tensors={}
    )
    message = refused(EngineOptions(model=model, **drafting(str(tmp_path / "bad"))))
    assert f"{tmp_path / 'bad' / 'config.json'}: hybrid_override_pattern" in message


def test_slots_and_pages_of_a_draft_model(folder):
    model, draft = folder("nemotron_dense"), folder("nemotron_moe")
    options = {"max_model_len": 96, "max_num_seqs": 4, "mamba_block_size": 8, "dtype": "float32"}
    config = source(model, draft, **options).config
    assert (config.num_state_slots, config.num_kv_pages) == (4 * (2 + 12), 4 * 6 * 2)
    config = source(model, draft, num_state_slots=5, num_kv_pages=7, **options).config
    assert (config.num_state_slots, config.num_kv_pages) == (4 * (2 + 12), 4 * 6 * 2)
    plain = options | {"mamba_block_size": None, "enable_prefix_caching": False}
    config = source(model, draft, **plain).config
    assert (config.num_state_slots, config.num_kv_pages) == (8, 24)
    config = source(model, folder("mamba2_g4"), **options).config
    assert (config.num_state_slots, config.num_kv_pages) == (4 * 14, 0)
    config = source(model, folder("attention_only"), **options).config
    assert (config.num_state_slots, config.num_kv_pages) == (0, 4 * 6 * 2)
    config = source(model, folder("short"), **options).config
    assert (config.max_model_len, config.num_kv_pages) == (48, 4 * 3 * 2)
    assert not config.warnings

    def with_memory(free: int, name: str) -> DraftModelSource:
        described = [read_model(folder(n)) for n in ("nemotron_dense", name)]
        weights = sum(weight_bytes(m.spec, "float32", "cpu") for m in described)
        target = 5 * slot_of(described[0]) + 7 * page_of(described[0])
        memory = free + weights + target
        return source(model, folder(name), memory, num_state_slots=5, num_kv_pages=7, **options)

    # A quarter each: room for 7 slots, or for 17 pages.
    moe, attention = (read_model(folder(name)) for name in ("nemotron_moe", "attention_only"))
    for name, free, homes, served in (
        ("nemotron_moe", 4 * 7 * slot_of(moe), (7, 48), 3),
        ("attention_only", 4 * 17 * page_of(attention), (0, 17), 2),
    ):
        config = with_memory(free, name).config
        assert (config.num_state_slots, config.num_kv_pages) == homes
        (line,) = config.warnings
        assert line == (
            f"speculative_config.model: memory has room for the drafts of {served} requests of 96 "
            "tokens at a time, not of max_num_seqs = 4; the others get none"
        )
    for name, free in (
        ("nemotron_moe", 4 * 2 * slot_of(moe) - 1),
        ("attention_only", 4 * 6 * page_of(attention) - 1),
        ("nemotron_moe", 0),
        ("nemotron_moe", -1000),
    ):
        with pytest.raises(ConfigError, match=r"^speculative_config\.model is .* left of this"):
            with_memory(free, name)


def slot_of(model) -> int:
    m, layers = model.spec.mamba, sum(layer.kind == "M" for layer in model.spec.layers)
    return layers * 4 * ((m.d_conv - 1) * m.conv_dim + m.nheads * m.headdim * m.dstate)


def page_of(model) -> int:
    layers = sum(layer.kind == "*" for layer in model.spec.layers)
    return layers * 4 * 2 * 16 * model.spec.attention.kv_dim


@slow
def test_the_time_of_catching_up_is_told_apart(make, monkeypatch):
    """On a clock that counts the draft model's rows: what was there before a step is no part of
    what drafts cost."""
    engine = make("mamba2_g4", 2, **NO_CACHE)
    drafter, clock, told = drafter_of(engine), [0], []
    execute = drafter.runner.execute

    def counted(plan, sampled=None):
        clock[0] += plan.num_tokens
        return execute(plan, sampled)

    monkeypatch.setattr(drafter.runner, "execute", counted)
    monkeypatch.setattr(draft_model, "_clock", lambda: clock[0])
    monkeypatch.setattr(
        engine.speculator.control, "took", lambda n, drafts, seconds: told.append(seconds)
    )
    wanted = iter([2, 2, 0, 0, 0, 2, 2, 2])
    monkeypatch.setattr(engine.speculator.control, "length", lambda *_: next(wanted, 0))
    engine.add_request("a", tokens(17), SamplingParams(max_tokens=30, ignore_eos=True))
    caught_up, lengths = [], []
    for _ in range(8):
        engine.step()
        caught_up.append(drafter.catch_up_s)
        lengths.append(len(engine.scheduler.running["a"].output_token_ids))
    assert caught_up[0] == 17, "the prompt"
    assert caught_up[1:5] == [0, 0, 0, 0] and caught_up[6:] == [0, 0]
    # All that was known after the second step is computed; the sixth verified none, and gave one.
    assert caught_up[5] == lengths[5] - 1 - lengths[1] > 0
    assert len(told) == 7 and all(seconds >= 0 for seconds in told)
