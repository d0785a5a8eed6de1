"""`prompt_logprobs`: the log-softmax of a full run's logits, however the prompt is cut."""

import numpy as np
import pytest

from coachwhip import LLM, RequestError, SamplingParams
from coachwhip.config import EngineOptions
from coachwhip.engine import Engine
from coachwhip.schedule.plan import PlannedSequence, StepPlan
from coachwhip.verify import LOOPS
from tests.engine.caching import GRID, Poison, assert_nothing_is_owned, check, slow, tokens

LONGEST, NEW, TOP, BESIDE = 64, 5, 3, 25
PROMPTS = [tokens(n, seed=n) for n in (1, 2, 7, 16, 21, 33)]
PARAMS = SamplingParams(max_tokens=NEW, ignore_eos=True, prompt_logprobs=TOP, logprobs=1)
MTP = {"method": "mtp", "num_speculative_tokens": 3, "adaptive": False}
NAMES = ["nemotron_latent_mtp", "mamba2_g4"]


@pytest.fixture(scope="module")
def engines(tiny_folder):
    """Returns a function: name of a tiny model -> its engine, with pools for all tests here."""
    made: dict[str, Engine] = {}

    def engine(name: str) -> Engine:
        if name not in made:
            made[name] = Engine(
                EngineOptions(
                    model=str(tiny_folder(name)),
                    dtype="float32",
                    max_model_len=LONGEST,
                    mamba_block_size=GRID,
                    num_state_slots=80,
                    speculative_config=MTP if "mtp" in name else None,
                )
            )
        return made[name]

    return engine


def full_logits(engine: Engine, prompt: list[int]) -> np.ndarray:
    """Returns the logits [tokens, vocab] f32 after all rows of a prompt, computed in one step."""
    pages = tuple(range(-(-len(prompt) // engine.config.kv_cache_page_size)))
    pages = pages[: engine.config.num_kv_pages]
    writes = (*[-1] * (len(prompt) - 1), 0)
    rows = PlannedSequence("full", tuple(prompt), 0, -1, writes, pages, len(prompt))
    return engine.runner.execute(StepPlan((rows,))).logits


def expected(engine: Engine, prompt: list[int]) -> list[dict[int, float] | None]:
    found: list[dict[int, float] | None] = [None]
    for row, token in zip(full_logits(engine, prompt)[:-1], prompt[1:], strict=True):
        wide = row.astype(np.float64)
        total = float(row.max()) + float(np.log(np.exp(wide - float(row.max())).sum()))
        order = sorted(range(len(row)), key=lambda i, row=row: (-row[i], i))[:TOP]
        chosen = order if token in order else [*order, token]
        found.append({i: float(row[i]) - total for i in chosen})
    return found


def run(engine: Engine, params: SamplingParams, preempt: bool = False) -> list:
    """Runs all prompts beside one that wants no log probabilities; returns their outputs."""
    outputs = [engine.add_request(str(i), p, params) for i, p in enumerate(PROMPTS)]
    engine.add_request("beside", tokens(BESIDE, seed=99), SamplingParams(max_tokens=NEW))
    seen = 0
    while engine.has_unfinished:
        for output in engine.step():
            assert output.outputs[0].token_ids or output.finished
        seen += 1
        if preempt and seen % 3 == 0 and engine.scheduler.running and seen < 40:
            engine.preempt(
                list(engine.scheduler.running)[seen // 3 % len(engine.scheduler.running)]
            )
        check(engine)
    assert_nothing_is_owned(engine)
    return outputs


@slow
@pytest.mark.parametrize("name", NAMES)
def test_they_are_those_of_full_logits_however_prompts_are_cut(engines, name):
    base = engines(name)
    plain = base.with_options(speculative_config=None, max_num_seqs=1)
    want = [expected(base, prompt) for prompt in PROMPTS]
    texts = []
    for prompt in PROMPTS:
        out = plain.add_request("a", prompt, SamplingParams(max_tokens=NEW, ignore_eos=True))
        while plain.has_unfinished:
            plain.step()
        texts.append(out.outputs[0].token_ids)
        assert out.prompt_logprobs is None
    for i, (budget, preempt) in enumerate((b, p) for b in (1, 3, 16, 512) for p in (False, True)):
        engine = base.with_options(
            max_num_batched_tokens=budget,
            step_loop=LOOPS[(i + i // 2) % 2],
            mamba_cache_mode=("all", "align", "none")[i % 3],
        )
        Poison(base)(engine)
        for _ in range(2):  # cold, and with the prompts in the cache
            outputs = run(engine, PARAMS, preempt)
            assert [o.prompt_logprobs for o in outputs] == want
            assert [o.outputs[0].token_ids for o in outputs] == texts
            assert all(len(o.outputs[0].logprobs) == NEW for o in outputs)
            assert all(o.num_cached_tokens == 0 for o in outputs)
        assert bool(engine.metrics().num_preemptions) == preempt


@slow
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_may_be_scored_without_a_text(engines, name, loop):
    base = engines(name)
    want = [expected(base, prompt) for prompt in PROMPTS]
    scored = SamplingParams(max_tokens=0, prompt_logprobs=TOP, logprobs=0)
    for budget in (1, 5, 512):
        engine = base.with_options(max_num_batched_tokens=budget, step_loop=loop)
        Poison(base)(engine)
        for preempt in (False, True):
            before = engine.metrics().prompt_tokens
            outputs = run(engine, scored, preempt)
            assert [o.prompt_logprobs for o in outputs] == want
            counted = engine.metrics().prompt_tokens - before
            assert counted == sum(map(len, PROMPTS)) + BESIDE
            for output in outputs:
                completion = output.outputs[0]
                assert (completion.token_ids, completion.text, completion.logprobs) == ([], "", [])
                assert completion.finish_reason == "length" and output.finished
                assert output.metrics["total"] >= output.metrics["time_to_first_token"] >= 0


@slow
def test_what_was_scored_is_found_by_others(engines):
    engine = engines("nemotron_latent_mtp").with_options()
    prompt = tokens(33, seed=33)
    for max_tokens in (0, 1):
        engine.reset_prefix_cache()
        scored = SamplingParams(max_tokens=max_tokens, prompt_logprobs=0)
        for params in (scored, SamplingParams(max_tokens=1)):
            output = engine.add_request("a", prompt, params)
            while engine.has_unfinished:
                engine.step()
        assert output.num_cached_tokens == 32
    assert engine.metrics().prefix_miss_total["prompt_logprobs"] == 2


@slow
def test_a_whole_list_may_be_scored(tiny_folder):
    llm = LLM(str(tiny_folder("nemotron_latent_mtp")), dtype="float32", max_model_len=LONGEST)
    outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=0, prompt_logprobs=1))
    assert [len(o.prompt_logprobs) for o in outputs] == [len(p) for p in PROMPTS]
    (one,) = llm.generate([[5]], SamplingParams(max_tokens=0, prompt_logprobs=1))
    assert one.prompt_logprobs == [None] and one.finished
    assert_nothing_is_owned(llm.engine)


@slow
def test_prompt_rows_that_are_not_finite_end_the_request(engines):
    engine = engines("mamba2_g4").with_options()
    execute = engine.runner.execute
    broken = iter([False, True])

    def spoiled(plan, sampled):
        out = execute(plan, sampled)
        out.finite[3] = not next(broken)
        return out

    engine.runner.execute = spoiled
    try:
        for reason in ("length", "error"):
            params = SamplingParams(max_tokens=1, prompt_logprobs=0, ignore_eos=True)
            output = engine.add_request("a", tokens(9), params)
            assert engine.step() == [output]
            assert output.outputs[0].finish_reason == reason
            assert bool(output.error) == (reason == "error")
            assert_nothing_is_owned(engine)
    finally:
        del engine.runner.execute


def test_a_text_of_no_tokens_needs_them():
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens == 0
    for values in ({"max_tokens": 0}, {"max_tokens": -1, "prompt_logprobs": 1}):
        with pytest.raises(RequestError) as error:
            SamplingParams(**values)
        assert error.value.field == "max_tokens"
