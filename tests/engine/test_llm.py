"""`LLM` from prompts to texts: equal to the reference for any batch, budget and order."""

import itertools
import logging

import numpy as np
import pytest

from coachwhip import LLM, ConfigError, EngineError, RequestError, SamplingParams
from coachwhip.locate import small_model_dir
from tests.reference.nemotron_h import Reference

NAME = "nemotron_dense"
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=3)
LENGTHS = [1, 2, 7, 16, 33, 90, 5, 40]


@pytest.fixture(scope="module")
def prompts():
    draws = np.random.default_rng(5)
    return [draws.integers(0, 512, n).tolist() for n in LENGTHS]


@pytest.fixture(scope="module")
def make(tiny_folder):
    """Returns a function: options -> an LLM of the tiny model, checked for leaks at the end."""
    made = []

    def llm(**options) -> LLM:
        options = {"dtype": "float32", "max_model_len": 128, **options}
        made.append(LLM(str(tiny_folder(NAME)), **options))
        return made[-1]

    yield llm
    for one in made:
        assert not one.engine.has_unfinished
        one.engine.scheduler.check()
        assert one.engine.scheduler.cache.slots.owned == 0
        assert one.engine.scheduler.cache.pages.owned == 0


@pytest.fixture(scope="module")
def expected(tiny, prompts):
    reference = tiny(NAME).reference
    return [reference.greedy(p, GREEDY.max_tokens) for p in prompts]


def as_inputs(prompts):
    return [{"prompt_token_ids": p} for p in prompts]


@pytest.mark.slow
def test_a_batch_of_prompts_equals_the_reference(make, prompts, expected):
    outs = make().generate(as_inputs(prompts), GREEDY)
    assert [o.outputs[0].token_ids for o in outs] == expected
    for out, ids in zip(outs, prompts, strict=True):
        assert out.finished and out.prompt_token_ids == ids
        assert out.outputs[0].finish_reason == "length"
        assert out.num_cached_tokens == out.num_drafted_tokens == out.num_accepted_tokens == 0
        assert out.metrics["total"] >= out.metrics["time_to_first_token"] > 0


@pytest.mark.slow
def test_budget_and_batch_change_no_bit(make, prompts):
    want = None
    for budget in (512, 1, 3, 7, 16, 64):
        for seqs in (8, 1, 3):
            llm = make(max_num_batched_tokens=budget, max_num_seqs=seqs)
            outs = llm.generate(as_inputs(prompts), GREEDY)
            got = [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outs]
            want = want or got
            assert got == want, f"budget {budget}, {seqs} sequences"


@pytest.mark.slow
def test_few_pages_only_delay(make, prompts, expected):
    llm = make(num_kv_pages=8, kv_cache_page_size=16)
    outs = llm.generate(as_inputs(prompts), GREEDY)
    assert [o.outputs[0].token_ids for o in outs] == expected


@pytest.mark.slow
def test_page_size_changes_no_token(make, prompts, expected):
    outs = make(kv_cache_page_size=24).generate(as_inputs(prompts), GREEDY)
    assert [o.outputs[0].token_ids for o in outs] == expected


@pytest.mark.slow
def test_logprobs_are_those_of_the_reference(make, prompts, tiny):
    reference = tiny(NAME).reference
    (out,) = make().generate({"prompt_token_ids": prompts[4]}, GREEDY)
    ids = prompts[4] + out.outputs[0].token_ids
    want = reference.logits(ids).log_softmax(-1).numpy()[len(prompts[4]) - 1 : -1]
    assert len(out.outputs[0].logprobs) == len(want) == GREEDY.max_tokens
    for token, row, got in zip(
        out.outputs[0].token_ids, want, out.outputs[0].logprobs, strict=True
    ):
        assert list(got) == np.argsort(-row, kind="stable")[:3].tolist()
        assert next(iter(got)) == token
        assert max(abs(row[i] - value) for i, value in got.items()) < 1e-4


@pytest.mark.slow
def test_salts_keep_prompts_apart_and_a_reset_forgets_them(make, prompts):
    llm = make(mamba_block_size=8)
    mine = {"prompt_token_ids": prompts[7], "cache_salt": "me"}

    def hits(*asked):
        return [o.num_cached_tokens for p in asked for o in llm.generate(p, GREEDY)]

    assert hits(mine, {**mine, "cache_salt": "you"}, prompts[7]) == [0, 0, 0]
    assert hits(mine, prompts[7]) == [32, 32]
    llm.reset_prefix_cache()
    assert llm.metrics().slots_checkpoint == 0
    assert hits(mine, prompts[7]) == [0, 0]
    with pytest.raises(RequestError, match="cache_salt"):
        llm.generate({"cache_salt": "me"}, GREEDY)


@pytest.mark.slow
def test_priorities_order_requests_and_change_no_token(make, prompts, expected):
    llm = make(scheduling_policy="priority", max_num_seqs=2)
    outs = llm.generate(as_inputs(prompts), GREEDY, priority=[3, 3, 3, 2, 2, 2, 1, 0])
    assert [o.outputs[0].token_ids for o in outs] == expected
    seconds = [o.metrics["time_to_first_token"] for o in outs]
    assert max(seconds[6:]) < min(seconds[:3])
    with pytest.raises(RequestError, match="2 entries"):
        llm.generate(as_inputs(prompts), GREEDY, priority=[1, 2])
    with pytest.raises(RequestError, match="scheduling_policy"):
        make().generate(as_inputs(prompts[:1]), GREEDY, priority=1)
    (out,) = make().generate(as_inputs(prompts[:1]), GREEDY, priority=None)
    assert out.outputs[0].token_ids == expected[0]
    for wrong in (1.5, "high", [None]):
        with pytest.raises(RequestError) as error:
            llm.generate(as_inputs(prompts[:1]), GREEDY, priority=wrong)
        assert error.value.field == "priority"


@pytest.mark.slow
def test_max_model_len_ends_the_text(make, prompts):
    (out,) = make().generate([prompts[5]], SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(prompts[5]) + len(out.outputs[0].token_ids) == 128
    assert out.outputs[0].finish_reason == "length"


@pytest.mark.slow
def test_end_tokens_and_stop_tokens_end_the_text(make, prompts, expected):
    stop = expected[3][5]
    first = expected[3].index(stop)
    llm = make()
    (out,) = llm.generate([prompts[3]], SamplingParams(max_tokens=24, stop_token_ids=[stop]))
    assert out.outputs[0].token_ids == expected[3][: first + 1]
    assert (out.outputs[0].finish_reason, out.outputs[0].stop_reason) == ("stop", stop)
    eos = llm.engine.model.eos_token_ids
    object.__setattr__(llm.engine.model, "eos_token_ids", (stop,))
    try:
        (out,) = llm.generate([prompts[3]], SamplingParams(max_tokens=24))
        assert out.outputs[0].token_ids == expected[3][: first + 1]
        assert (out.outputs[0].finish_reason, out.outputs[0].stop_reason) == ("stop", None)
        (out,) = llm.generate([prompts[3]], GREEDY)
        assert out.outputs[0].token_ids == expected[3]
    finally:
        object.__setattr__(llm.engine.model, "eos_token_ids", eos)


@pytest.mark.slow
def test_abort_at_every_step_frees_everything_and_changes_no_other(make, prompts, expected):
    llm = make(max_num_batched_tokens=16)
    engine = llm.engine
    for when in range(0, 24, 3):
        done = {}
        for i, ids in enumerate(prompts[:4]):
            engine.add_request(f"{when}-{i}", ids, GREEDY)
        for step in range(1000):
            if step == when:
                engine.abort(f"{when}-1")
            engine.scheduler.check()
            for out in engine.step():
                if out.finished:
                    done[out.request_id] = out.outputs[0].token_ids
            if not engine.has_unfinished:
                break
        engine.scheduler.check()
        for i in (0, 2, 3):
            assert done[f"{when}-{i}"] == expected[i]
        assert f"{when}-1" not in done


@pytest.mark.slow
def test_bad_requests_are_refused_and_the_engine_lives_on(make, prompts, expected):
    llm = make()
    for bad, field in (
        ([], "prompt"),
        ({"prompt_token_ids": []}, "prompt"),
        ({"prompt_token_ids": [1, 512]}, "prompt_token_ids[1]"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids[0]"),
        ({"prompt_token_ids": [1.5]}, "prompt_token_ids[0]"),
        ({"prompt_token_ids": [True]}, "prompt_token_ids[0]"),
        ({"prompt_token_ids": [1] * 128}, "prompt"),
        ({"prompt": "x"}, "prompt"),
        ("text", "prompt"),
        (5, "prompt"),
    ):
        with pytest.raises(RequestError) as error:
            llm.generate([prompts[0], bad], GREEDY)
        assert error.value.field == field, bad
        assert "\n" not in str(error.value)
        assert not llm.engine.has_unfinished
    assert llm.generate([prompts[0]], GREEDY)[0].outputs[0].token_ids == expected[0]
    assert llm.generate([], GREEDY) == []
    for wrong in ([GREEDY, "x"], 5):
        with pytest.raises(RequestError) as error:
            llm.generate([prompts[0], prompts[1]], wrong)
        assert error.value.field == "sampling_params"
        assert not llm.engine.has_unfinished
    with pytest.raises(RequestError, match="2 entries"):
        llm.generate([prompts[0]], [GREEDY, GREEDY])
    with pytest.raises(RequestError, match="tokenizer"):
        llm.generate([prompts[0]], SamplingParams(stop="x"))
    for salt in ("", 5, "a\ud800"):
        with pytest.raises(RequestError) as error:
            list(llm.stream({"prompt_token_ids": prompts[0], "cache_salt": salt}, GREEDY))
        assert error.value.field == "cache_salt"
    for wrong in (None, 5):
        with pytest.raises(RequestError) as error:
            llm.generate(wrong, GREEDY)
        assert error.value.field == "prompts"
    with pytest.raises(ConfigError, match=r"model is .*other.*; make a new engine"):
        llm.engine.with_options(model="other")


def test_parameters_out_of_range_name_the_field():
    for field, value in (
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", "hot"),
        ("stop", [""]),
        ("stop", ["a"] * 5),
        ("stop", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 7),
        ("logprobs", 21),
        ("logprobs", -1),
    ):
        with pytest.raises(RequestError) as error:
            SamplingParams(**{field: value})
        assert error.value.field == field


def test_unknown_and_impossible_options_are_refused_before_weights_load(tiny_folder):
    folder = str(tiny_folder(NAME))
    for options, field, part in (
        ({"max_num_seq": 2}, "max_num_seq", "max_num_seqs"),
        ({"dtype": "float31"}, "dtype", "float32"),
        ({"max_model_len": 4096}, "max_model_len", "2048"),
        ({"max_num_seqs": 0}, "max_num_seqs", "from 1"),
        ({"max_num_seqs": 10**9}, "max_num_seqs", "at most"),
        ({"num_kv_pages": 3 * 10**9}, "num_kv_pages", "from 1"),
        ({"max_model_len": 1}, "max_model_len", "from 2"),
        ({"max_num_batched_tokens": -3}, "max_num_batched_tokens", "from 1"),
        ({"kv_cache_page_size": 12}, "kv_cache_page_size", "give 16"),
        ({"num_kv_pages": 3}, "num_kv_pages", "at least 128"),
        ({"device": "gpu"}, "device", "no GPU"),
        ({"mamba_ssm_cache_dtype": "int8"}, "mamba_ssm_cache_dtype", "float16"),
    ):
        with pytest.raises(ConfigError) as error:
            LLM(folder, **options)
        assert error.value.field == field
        assert part in str(error.value)


@pytest.mark.slow
def test_a_nan_weight_is_a_warning_and_then_a_clear_fault(tiny_folder, tmp_path, caplog):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "nan"
    folder.mkdir()
    tensors = load_file(tiny_folder(NAME) / "model.safetensors")
    tensors["backbone.layers.1.mixer.down_proj.weight"][3, 4] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text((tiny_folder(NAME) / "config.json").read_text())
    with caplog.at_level(logging.WARNING):
        llm = LLM(str(folder), dtype="float32", max_model_len=128)
    assert "backbone.layers.1.mixer.down_proj.weight" in caplog.text
    with pytest.raises(EngineError, match="not finite"):
        llm.generate([[1, 2, 3]], GREEDY)
    assert not llm.engine.has_unfinished


@pytest.mark.slow
def test_one_request_with_nan_leaves_the_others_alone(tiny_folder, tmp_path, prompts, expected):
    """Token 7's embedding is NaN: requests with it fail, requests beside them do not notice."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(tiny_folder(NAME) / "model.safetensors")
    tensors["backbone.embeddings.weight"][7] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((tiny_folder(NAME) / "config.json").read_text())
    llm = LLM(str(tmp_path), dtype="float32", max_model_len=128, on_warning=lambda line: None)
    engine, ends = llm.engine, {}
    clean = [i for i, p in enumerate(prompts) if 7 not in p and 7 not in expected[i]][:4]
    for i in clean:
        engine.add_request(f"good {i}", prompts[i], GREEDY)
    while engine.has_unfinished:
        if len(engine._live[next(iter(engine._live))].output.outputs[0].token_ids) == 3:
            engine.add_request("bad", [1, 7, 2], GREEDY)
        for output in engine.step():
            if output.finished:
                ends[output.request_id] = output
        engine.scheduler.check()
    assert ends.pop("bad").outputs[0].finish_reason == "error"
    assert {o.outputs[0].finish_reason for o in ends.values()} == {"length"}
    assert [ends[f"good {i}"].outputs[0].token_ids for i in clean] == [expected[i] for i in clean]


@pytest.mark.slow
def test_a_step_that_fails_ends_its_requests_and_no_other(make, prompts, expected, monkeypatch):
    llm = make(max_num_seqs=1)
    first = llm.engine.add_request("first", prompts[0], GREEDY)
    second = llm.engine.add_request("second", prompts[1], GREEDY)
    llm.engine.step()

    def broken(*inputs):
        raise ValueError("a kernel raised")

    monkeypatch.setattr(llm.engine.runner, "_model", type("Model", (), {"execute": broken})())
    with pytest.raises(EngineError, match="a kernel raised"):
        llm.engine.step()
    monkeypatch.undo()
    assert first.outputs[0].finish_reason == "error"
    while llm.engine.has_unfinished:
        llm.engine.step()
    assert second.outputs[0].token_ids == expected[1]


@pytest.mark.slow
def test_streams_run_side_by_side(make, prompts, expected):
    llm = make()
    streams = [llm.stream({"prompt_token_ids": p}, GREEDY) for p in prompts[:3]]
    seen: list[list[list[int]]] = [[], [], []]
    for turn in range(60):
        for i, stream in enumerate(streams):
            if turn % (i + 1) == 0:
                for output in stream:
                    seen[i].append(list(output.outputs[0].token_ids))
                    break
        if turn == 4:
            (out,) = llm.generate([prompts[5]], GREEDY)
            assert out.outputs[0].token_ids == expected[5]
    for i in range(3):
        assert seen[i][-1] == expected[i]
        assert all(b[: len(a)] == a for a, b in itertools.pairwise(seen[i]))


@pytest.mark.slow
def test_the_shipped_model_writes_words_and_equals_the_reference():
    llm = LLM(max_model_len=256)
    prompt = "My fellow citizens, we have"
    (out,) = llm.generate(prompt, SamplingParams(max_tokens=40))
    reference = Reference.from_folder(small_model_dir())
    assert out.prompt == prompt
    assert out.outputs[0].token_ids == reference.greedy(out.prompt_token_ids, 40)
    words = out.outputs[0].text.split()
    assert len(words) > 15 and sum(w.isalpha() for w in words) > len(words) / 2
    # A stop string ends the text before it, also when it begins inside a token.
    stop = out.outputs[0].text[20:29]
    (cut,) = llm.generate(prompt, SamplingParams(max_tokens=40, stop=stop))
    assert cut.outputs[0].text == out.outputs[0].text[: out.outputs[0].text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    # Streaming yields the same text, growing.
    seen = [o.outputs[0].text for o in llm.stream(prompt, SamplingParams(max_tokens=40))]
    # Bytes that are no UTF-8 come so from a command line.
    broken = b"caf\xe9".decode(errors="surrogateescape")
    for text, params, field in (
        (broken, None, "prompt"),
        (prompt, SamplingParams(bad_words=broken), "bad_words"),
    ):
        with pytest.raises(RequestError, match=r"character 3 is half .* U\+DCE9") as error:
            llm.generate(text, params)
        assert error.value.field == field
    with pytest.raises(RequestError, match=r"is half .* U\+DCE9; drop it") as error:
        llm.chat([{"role": "user", "content": broken}])
    assert error.value.field == "messages"
    assert seen[-1] == out.outputs[0].text
    assert all(b.startswith(a) for a, b in itertools.pairwise(seen))
