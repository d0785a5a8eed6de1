"""The overlapped loop: its outputs are the simple loop's, and the next step really runs meanwhile.

`test_cache_equivalence.py` and `test_speculation.py` run their matrices in both loops.
"""

import threading

import pytest

from coachwhip import LLM, EngineError, SamplingParams
from coachwhip.config import EngineOptions
from coachwhip.engine import Engine
from coachwhip.live_request import LiveRequest
from coachwhip.verify import LOOPS
from tests.engine.caching import GRID, assert_nothing_is_owned, check, outputs_of, slow, tokens

NEW = 9
PARAMS = SamplingParams(max_tokens=NEW, ignore_eos=True)


@pytest.fixture(scope="module")
def base(tiny_folder):
    return Engine(
        EngineOptions(
            model=str(tiny_folder("nemotron_dense")),
            dtype="float32",
            max_model_len=64,
            mamba_block_size=GRID,
            num_state_slots=80,
        )
    )


@pytest.fixture
def make(base):
    """Returns a function: options -> an engine with the overlapped loop and nothing cached."""

    def engine(**options) -> Engine:
        return base.with_options(**{"step_loop": "overlapped", **options})

    return engine


@pytest.fixture(scope="module")
def small():
    """An engine of the small model, which has a tokenizer."""
    return LLM(max_model_len=256, mamba_block_size=8).engine


def is_under_way(engine: Engine, request_id: str) -> bool:
    request = engine.scheduler.running.get(request_id)
    return request is not None and engine.scheduler.is_in_flight(request)


@slow
def test_outputs_are_completed_and_handed_out_while_the_next_step_runs(make, monkeypatch):
    engine = make()
    execute, emitted, waited = engine.runner.execute, threading.Event(), []
    emit = LiveRequest.emit

    def emitting(live):
        emit(live)
        emitted.set()

    def slow_graph(plan, sampled, on_launch):
        assert threading.current_thread() is not threading.main_thread()
        on_launch()
        if len(waited) == 1:  # until the outputs of the first step are there
            waited.append(emitted.wait(60))
        else:
            waited.append(True)
        return execute(plan, sampled)

    monkeypatch.setattr(LiveRequest, "emit", emitting)
    monkeypatch.setattr(engine.runner, "execute", slow_graph)
    output = engine.add_request("a", tokens(5), PARAMS)
    assert engine.step() == [output]
    assert len(output.outputs[0].token_ids) == 1 and is_under_way(engine, "a")
    assert engine.step() == [output]
    assert waited[:2] == [True, True]
    assert len(output.outputs[0].token_ids) == 2 and is_under_way(engine, "a")
    engine.abort("a")
    assert_nothing_is_owned(engine)


@slow
def test_texts_stops_and_log_probabilities_are_those_of_the_simple_loop(small):
    """Also what is published: nothing after a stop string, wherever in a token it begins."""
    text = "My fellow citizens, we have"
    prompts = [small.tokenizer.encode(text[:n]) for n in (9, len(text), 14)]
    plain = SamplingParams(max_tokens=24, ignore_eos=True)
    first = small.add_request("first", prompts[1], plain)
    while small.has_unfinished:
        small.step()
    said = first.outputs[0].text
    params = [
        SamplingParams(max_tokens=24, logprobs=2, stop=[said[7:12], "zzz"]),
        SamplingParams(max_tokens=24, temperature=0.8, seed=1, logprobs=0),
        SamplingParams(max_tokens=24, stop=said[9:15], presence_penalty=0.5),
        SamplingParams(max_tokens=24, stop=said[20:24], min_tokens=5),
        SamplingParams(max_tokens=7, stop_token_ids=first.outputs[0].token_ids[3:5]),
    ]
    found = {}
    for loop in ("simple", "overlapped"):
        config = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}
        for speculation in (None, config):
            engine = small.with_options(
                step_loop=loop, max_num_seqs=3, speculative_config=speculation
            )
            cache, seen = engine.scheduler.cache, {}
            outputs = [
                engine.add_request(f"{i} {j}", prompt, one)
                for i, prompt in enumerate(prompts)
                for j, one in enumerate(params)
            ]
            while engine.has_unfinished:
                for output in engine.step():
                    completion = output.outputs[0]
                    assert completion.logprobs is None or len(completion.logprobs) == len(
                        completion.token_ids
                    )
                    before = seen.get(output.request_id, "")
                    cut = completion.finish_reason == "stop"  # a stop string may have begun before
                    assert completion.text.startswith(before) or cut
                    seen[output.request_id] = completion.text
                check(engine)
            assert_nothing_is_owned(engine)
            reasons = {o.outputs[0].finish_reason for o in outputs}
            assert reasons == {"stop", "length"} and any(o.outputs[0].stop_reason for o in outputs)
            tokens_counted = engine.metrics().generation_tokens
            assert tokens_counted == sum(len(o.outputs[0].token_ids) for o in outputs)
            found[loop, speculation is not None] = [
                [o.outputs[0] for o in outputs],
                {k for pool in (cache.slots, cache.pages) for k in pool._index},
            ]
    texts, published = found["simple", False]
    assert all(pair[0] == texts for pair in found.values())
    assert found["overlapped", False][1] == published
    assert found["overlapped", True][1] == found["simple", True][1]


@slow
def test_a_request_ends_while_its_next_step_is_under_way(make):
    engine = make(max_num_seqs=2)
    (want,) = outputs_of(engine, {"b": tokens(11)}, NEW).values()
    engine.reset_prefix_cache()
    first = engine.add_request("a", tokens(21, seed=1), PARAMS)
    second = engine.add_request("b", tokens(11), PARAMS)
    engine.step()
    assert is_under_way(engine, "a")
    engine.abort("a")
    check(engine)
    # The same id may be used at once; what the step gives is not taken for the new request's.
    third = engine.add_request("a", tokens(11), PARAMS)
    assert first.outputs[0].finish_reason == "abort" and len(first.outputs[0].token_ids) == 1
    while engine.has_unfinished:
        engine.step()
        check(engine)
    assert len(first.outputs[0].token_ids) == 1
    assert second.outputs[0].token_ids == third.outputs[0].token_ids == want.outputs[0].token_ids
    assert_nothing_is_owned(engine)


@slow
def test_with_its_last_request_gone_an_engine_is_at_rest(make):
    engine = make()
    for request_id in "abc":
        engine.add_request(request_id, tokens(5), PARAMS)
    engine.step()
    for request_id in "abc":
        assert is_under_way(engine, request_id)
        engine.abort(request_id)
    assert_nothing_is_owned(engine)
    assert engine.step() == []


@slow
def test_a_preemption_waits_for_the_step_and_keeps_what_it_gave(make):
    engine = make()
    (want,) = outputs_of(engine, {"a": tokens(11)}, 3).values()
    with pytest.raises(ValueError, match="does not run"):
        engine.preempt("a")
    params = SamplingParams(max_tokens=3, ignore_eos=True, logprobs=0)
    output = engine.add_request("a", tokens(11), params)
    engine.step()
    engine.preempt("a")
    check(engine)
    assert len(output.outputs[0].logprobs) == 2, "no output has tokens alone"
    assert len(output.outputs[0].token_ids) == 2 and engine.metrics().num_preemptions == 1
    assert engine.step() == [output], "what the preemption waited for is handed out"
    engine.preempt("a")  # it has just ended with the step that was under way
    assert output.finished and engine.has_unfinished and engine.metrics().num_preemptions == 1
    assert engine.step() == [output]
    assert output.outputs[0].token_ids == want.outputs[0].token_ids
    assert_nothing_is_owned(engine)


@slow
@pytest.mark.parametrize("error", [EngineError("the device is gone"), KeyboardInterrupt()])
def test_a_step_that_fails_ends_its_requests_after_the_outputs_before_it(make, monkeypatch, error):
    engine = make(max_num_seqs=2)
    (want,) = outputs_of(engine, {"c": tokens(7)}, NEW).values()
    execute, calls = engine.runner.execute, []

    def failing(plan, sampled, on_launch):
        calls.append(plan)
        if len(calls) == 2:
            raise error
        return execute(plan, sampled, on_launch)

    monkeypatch.setattr(engine.runner, "execute", failing)
    outputs = [engine.add_request(i, tokens(7), PARAMS) for i in "abc"]
    assert len(engine.step()) == 2  # and the failing step is under way
    with pytest.raises(type(error)):
        engine.step()
    check(engine)
    assert [o.outputs[0].finish_reason for o in outputs] == ["error", "error", None]
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1, 1, 0]
    while engine.has_unfinished:
        engine.step()
        check(engine)
    assert outputs[2].outputs[0].token_ids == want.outputs[0].token_ids
    assert_nothing_is_owned(engine)


@slow
def test_outputs_are_not_lost_when_the_next_plan_fails(make, monkeypatch):
    """As where the audit of a checkpoint that is about to be restored finds a fault."""
    engine = make()
    one = SamplingParams(max_tokens=1, logprobs=0)
    first, plan, calls = engine.add_request("a", tokens(7), one), engine.scheduler.plan, []

    def failing():
        calls.append(None)
        if len(calls) == 2:
            raise EngineError("a checkpoint is wrong")
        return plan()

    monkeypatch.setattr(engine.scheduler, "plan", failing)
    second = engine.add_request("b", tokens(9), one)
    engine.scheduler.max_num_seqs = 1
    with pytest.raises(EngineError, match="is wrong"):
        engine.step()
    assert first.finished and len(first.outputs[0].logprobs) == 1
    assert engine.step() == [first]
    assert engine.step() == [second] and second.finished
    assert_nothing_is_owned(engine)


def assert_only_the_last_goes_on(engine, outputs, want):
    """Asserts that two requests ended with an error, and that the third gives what is wanted."""
    check(engine)
    assert [o.outputs[0].finish_reason for o in outputs] == ["error", "error", None]
    while engine.has_unfinished:
        engine.step()
        check(engine)
    assert outputs[2].outputs[0].token_ids == want.outputs[0].token_ids
    assert_nothing_is_owned(engine)


@slow
@pytest.mark.parametrize("loop", LOOPS)
def test_rows_that_cannot_be_laid_out_end_their_step_alone(make, monkeypatch, loop):
    """As where what chooses a token raises: the next step can be planned."""
    engine = make(step_loop=loop, max_num_seqs=2)
    (want,) = outputs_of(engine, {"c": tokens(7)}, NEW).values()
    params = SamplingParams(max_tokens=NEW, ignore_eos=True, temperature=1.0, seed=1)
    outputs = [engine.add_request(i, tokens(7), params) for i in "ab"]
    outputs.append(engine.add_request("c", tokens(7), PARAMS))

    def broken(position, drafts=()):
        raise ValueError("no row")

    engine.step()
    monkeypatch.setattr(engine._live["a"].sampler, "row", broken)
    with pytest.raises(ValueError, match="no row"):
        for _ in range(3):
            engine.step()
    assert_only_the_last_goes_on(engine, outputs, want)


@slow
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("part", ["_accept", "_draft", "scheduler.fold"])
def test_an_interrupt_after_a_step_ends_its_requests_alone(make, monkeypatch, loop, part):
    """As of Ctrl-C in a notebook: the engine serves what comes next."""
    engine = make(step_loop=loop, max_num_seqs=2)
    (want,) = outputs_of(engine, {"c": tokens(7)}, NEW).values()
    owner = engine._loop.scheduler if "." in part else engine._loop
    name = part.split(".")[-1]
    whole = getattr(owner, name)

    def interrupted(*given):
        whole(*given)
        raise KeyboardInterrupt

    outputs = [engine.add_request(i, tokens(7), PARAMS) for i in "abc"]
    engine.step()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, interrupted)
        engine.step()
    assert_only_the_last_goes_on(engine, outputs, want)


@slow
def test_a_step_that_fails_spares_a_new_request_with_the_id_of_an_aborted_one(make, monkeypatch):
    engine = make(max_num_seqs=2)
    (want,) = outputs_of(engine, {"a": tokens(7)}, NEW).values()
    for request_id in "ab":
        engine.add_request(request_id, tokens(5), PARAMS)
    engine.step()
    engine.abort("a")
    new = engine.add_request("a", tokens(7), PARAMS)
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="lost"):
        patch.setattr(engine._loop, "_accept", lambda plan, out: int("lost"))
        engine.step()
    while engine.has_unfinished:
        engine.step()
    assert new.outputs[0].token_ids == want.outputs[0].token_ids
    assert_nothing_is_owned(engine)
