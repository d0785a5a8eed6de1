"""Texts that follow a grammar: what they are, that drafts and caches change none, how they end.

Expected tokens are those of the float32 torch reference's logits and of the masks' tokens, which
llguidance takes when each is tried alone.
"""

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from coachwhip import LLM, Grammar, RequestError, SamplingParams
from coachwhip.config import EngineOptions
from coachwhip.engine import Engine
from coachwhip.openai import CHAT_URL, Frontend, parse_body, translate
from coachwhip.verify import speculation_options
from tests.engine.caching import Poison, assert_nothing_is_owned, check, slow, tokens
from tests.engine.scripted import ScriptedDrafter
from tests.reference import sample
from tests.reference.byte_tokenizer import byte_tokenizer, save_byte_tokenizer
from tests.reference.checkpoints import write_checkpoint
from tests.reference.nemotron_h import Reference
from tests.reference.tiny_configs import TINY_CONFIGS

NAME = "nemotron_latent_mtp"
END, TURN_END = 2, 3
DRAFTS = 4
VOCAB = 512
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["the", "thin", "tall"]},
        "count": {"type": "integer", "minimum": -9, "maximum": 1200},
        "name": {"type": "string", "maxLength": 8},
        "flags": {"type": "array", "items": {"type": ["boolean", "null"]}, "maxItems": 3},
    },
    "required": ["kind", "count", "name", "flags"],
    "additionalProperties": False,
}
REGEX = "[a-f]{2,12}( th[a-f]*){1,3}"
PLACE = 'start: "12" (" " WORD)*\nWORD: /[a-f]{1,3}/'
KINDS = {
    "schema": {"grammar": Grammar("json_schema", SCHEMA), "temperature": 1.0},
    "schema, greedy": {"grammar": Grammar("json_schema", SCHEMA)},
    "filters and penalties": {
        "grammar": Grammar("json_schema", SCHEMA),
        "temperature": 1.3,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.2,
        "logit_bias": {40: 3.0},
    },
    "regex": {"grammar": Grammar("regex", REGEX), "temperature": 1.0},
    "lark": {"grammar": Grammar("lark", PLACE), "temperature": 0.8, "min_tokens": 9},
    "choice": {"grammar": Grammar("choice", ["true", "trap", "the", "é"]), "temperature": 1.5},
    "none": {"temperature": 1.0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A checkpoint of random weights whose tokenizer is smaller than its vocabulary."""
    folder = tmp_path_factory.mktemp(NAME)
    write_checkpoint(folder, TINY_CONFIGS[NAME])
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def base(folder) -> Engine:
    """An engine whose weights and pools those of the tests share."""
    return Engine(
        EngineOptions(
            model=str(folder),
            dtype="float32",
            max_model_len=256,
            mamba_block_size=4,
            max_num_seqs=32,
            num_state_slots=256,
            speculative_config={"method": "mtp", "num_speculative_tokens": DRAFTS},
        )
    )


@pytest.fixture
def make(base):
    """Returns a function: (method or None, drafter, options) -> a poisoned engine."""

    def engine(method: str | None = None, drafter: object = None, **options) -> Engine:
        drafts = DRAFTS if method else 0
        made = base.with_options(**speculation_options(base, method, drafts, drafter) | options)
        Poison(base)(made)
        return made

    return engine


def requests(**more) -> tuple[list[list[int]], list[SamplingParams]]:
    prompts, params = [], []
    for i, kind in enumerate(KINDS.values()):
        for length in (1, 11):
            prompts.append(tokens(length, seed=i))
            params.append(SamplingParams(**{"max_tokens": 120, "seed": 7 + i} | kind | more))
    return prompts, params


def run(engine: Engine, prompts, params, at_step=None) -> list:
    """Runs prompts, each with its parameters; returns their outputs. Ids are "0", "1", ..."""
    outputs = [
        engine.add_request(str(i), prompt, one)
        for i, (prompt, one) in enumerate(zip(prompts, params, strict=True))
    ]
    step = 0
    while engine.has_unfinished:
        if at_step is not None:
            at_step(engine, step)
        engine.step()
        check(engine)
        step += 1
    assert_nothing_is_owned(engine)
    return outputs


def texts(outputs) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def masked(guide) -> list[int]:
    """Returns the tokens that a guide's mask allows."""
    return np.flatnonzero(np.unpackbits(guide.mask().view(np.uint8), bitorder="little")).tolist()


def holds(grammar: Grammar, text: str) -> bool:
    """Whether a whole text is in the grammar, told by other means than the engine's."""
    if grammar.kind == "choice":
        return text in grammar.value
    if grammar.kind == "json_schema":
        jsonschema.validate(json.loads(text), json.loads(grammar.value))
        return True
    pattern = r"12( [a-f]{1,3})*" if grammar.kind == "lark" else grammar.value
    return re.fullmatch(pattern, text) is not None


@slow
def test_every_text_is_in_its_grammar_and_every_token_the_references(make, folder):
    prompts, params = requests(logprobs=2)
    outputs = run(make(), prompts, params)
    reference, close, guidance = Reference.from_folder(folder), 0, make().guidance
    for prompt, one, output in zip(prompts, params, outputs, strict=True):
        completion = output.outputs[0]
        if one.grammar is None:
            continue
        assert completion.finish_reason == "stop" and completion.stop_reason is None
        assert holds(one.grammar, completion.text), completion.text
        guide = guidance.guide(one.grammar)
        state, rows, text = reference.start(), prompt, []
        for token, logprobs in zip(completion.token_ids, completion.logprobs, strict=True):
            logits = reference.logits(rows, state)[-1].numpy()
            taken = {t for t in range(VOCAB) if guide.allowed((t,))}
            allowed = frozenset(masked(guide))
            # Where the next characters are the only ones, a mask has the usual token for them.
            assert allowed == taken or (len(allowed) == 1 and allowed < taken)
            if not one.penalizes and not one.min_tokens:
                row = sample.Row(
                    one.temperature,
                    seed=one.seed,
                    position=len(prompt) + len(text),
                    allowed=allowed,
                )
                fine = sample.acceptable(logits, row, 1e-6)
                assert token in fine
                close += len(fine) > 1
            assert token in allowed
            # Log probabilities are the model's own: the grammar changes none.
            raw = logits - np.logaddexp.reduce(logits.astype(np.float64))
            assert np.allclose([raw[t] for t in logprobs], list(logprobs.values()), atol=1e-4)
            guide.append(token)
            text.append(token)
            rows = [token]
        if one.min_tokens:
            assert len(text) >= one.min_tokens
    assert close < 5
    # Something else than the shortest texts, and not all of one length.
    assert len({len(t) for t in texts(outputs)}) > 4


@slow
@pytest.mark.parametrize(
    "mode, loop", [("none", "overlapped"), ("align", "simple"), ("all", "overlapped")]
)
def test_drafts_caches_and_loops_change_no_token(make, mode, loop):
    """Also a second time, with prefixes from the cache, and with preemptions in between."""
    prompts, params = requests(logprobs=1)
    options = {
        "mamba_cache_mode": mode,
        "enable_prefix_caching": mode != "none",
        "step_loop": loop,
    }
    plain = run(make(), prompts, params)
    known = {
        str(i): [*p, *text] for i, (p, text) in enumerate(zip(prompts, texts(plain), strict=True))
    }

    def preempts(engine: Engine, step: int) -> None:
        running = sorted(engine.scheduler.running)
        if step % 3 == 2 and running:
            engine.preempt(running[step % len(running)])

    for method in (None, "mtp", "ngram", "custom"):
        drafter = None
        if method == "custom":
            drafter = ScriptedDrafter(known, lambda r, n, k: ((5 * int(r) + 3 * n) % (k + 1), k))
        engine = make(method, drafter, **options)
        for at_step in (None, preempts):
            outputs = run(engine, prompts, params, at_step)
            assert texts(outputs) == texts(plain), method
            for got, want in zip(outputs, plain, strict=True):
                assert got.outputs[0].logprobs == want.outputs[0].logprobs
                assert got.outputs[0].finish_reason == want.outputs[0].finish_reason
        metrics = engine.metrics()
        assert metrics.num_preemptions > 0
        if method in ("mtp", "custom"):
            assert metrics.spec_decode_num_accepted_tokens > 0
        if mode != "none":
            assert metrics.prefix_cache_hits > 0


@slow
def test_a_draft_model_follows_the_grammar_too(make, base, tmp_path):
    """Its drafts are chosen among allowed tokens, so another model of random weights is right."""
    write_checkpoint(tmp_path, TINY_CONFIGS["mamba2_g4"])
    save_byte_tokenizer(tmp_path)
    prompts, params = requests(logprobs=1)
    plain = run(make(), prompts, params)
    config = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": DRAFTS}
    engine = make(speculative_config=config | {"adaptive": False})
    outputs = run(engine, prompts, params)
    assert texts(outputs) == texts(plain)
    guided = [o for o, one in zip(outputs, params, strict=True) if one.grammar is not None]
    drafted = sum(o.num_drafted_tokens for o in guided)
    assert sum(o.num_accepted_tokens for o in guided) > 0.1 * drafted > 0


@slow
def test_a_text_does_not_depend_on_its_company(make):
    prompts, params = requests()
    together = texts(run(make("mtp"), prompts, params))
    for i in range(0, len(prompts), 3):
        assert texts(run(make(), prompts[i : i + 1], params[i : i + 1])) == [together[i]]


@slow
def test_drafts_that_the_grammar_refuses_take_no_rows(make):
    """A drafter that is always wrong by the grammar costs nothing; one that is not may be right."""
    grammar, prompt = Grammar("choice", ["true true true null"]), tokens(5)

    class Wrong:
        def propose(self, request_id, token_ids, k):
            return [token_ids[0]] + [TURN_END] * (k - 1)

    class Right:
        def propose(self, request_id, token_ids, k):
            right = byte_tokenizer().encode("true true true null").ids
            return right[len(token_ids) - len(prompt) :][:k]

    params = SamplingParams(max_tokens=30, grammar=grammar)
    for drafter, drafted in ((Wrong(), 0), (Right(), 1)):
        engine = make("custom", drafter)
        (output,) = run(engine, [prompt], [params])
        assert output.outputs[0].text == "true true true null"
        assert bool(output.num_drafted_tokens) == bool(drafted)
        assert bool(output.num_accepted_tokens) == bool(drafted)


@slow
def test_how_texts_end(make):
    """Complete, cut by max_tokens, by a stop string, by a stop token, at an end token."""
    prompt = tokens(4)
    for params, text, reason, stopped_by in (
        ({"grammar": Grammar("choice", ["true"])}, "true", "stop", None),
        ({"grammar": Grammar("choice", ["true"]), "min_tokens": 9}, "true", "stop", None),
        ({"grammar": Grammar("choice", ["true"]), "max_tokens": 1}, "true", "stop", None),
        ({"grammar": Grammar("choice", ["abc"]), "max_tokens": 3}, "abc", "stop", None),
        ({"grammar": Grammar("choice", ["abc"]), "max_tokens": 2}, "ab", "length", None),
        ({"grammar": Grammar("choice", ["abcd"]), "stop": "c"}, "ab", "stop", "c"),
        (
            {"grammar": Grammar("regex", "a*"), "logit_bias": {END: 50}},
            "",
            "stop",
            None,
        ),
        (
            {"grammar": Grammar("regex", "a*"), "logit_bias": {END: 50}, "min_tokens": 5},
            "aaaaa",
            "stop",
            None,
        ),
        (
            {
                "grammar": Grammar("regex", "a*"),
                "logit_bias": {TURN_END: 50},
                "stop_token_ids": [TURN_END],
                "ignore_eos": True,
            },
            "",
            "stop",
            TURN_END,
        ),
        (
            {"grammar": Grammar("regex", "a*"), "logit_bias": {END: 50}, "ignore_eos": True},
            "a" * 30,
            "length",
            None,
        ),
    ):
        for method in (None, "mtp"):
            (output,) = run(make(method), [prompt], [SamplingParams(**{"max_tokens": 30} | params)])
            completion = output.outputs[0]
            assert (completion.text, completion.finish_reason) == (text, reason), params
            assert completion.stop_reason == stopped_by


@slow
def test_a_request_without_any_token_left_ends_with_an_error(make):
    """The others go on; the engine serves the next one."""
    prompt = tokens(6)
    stuck = SamplingParams(grammar=Grammar("choice", ["abc"]), bad_words=["bc", "c"], max_tokens=30)
    fine = SamplingParams(grammar=Grammar("choice", ["abc"]), max_tokens=30)
    zero = SamplingParams(
        grammar=Grammar("lark", "start: <[0]>"), logit_bias={0: 1.0}, max_tokens=30
    )
    for method in (None, "mtp", "ngram"):
        outputs = run(make(method), [prompt] * 4, [fine, stuck, zero, fine])
        assert [o.outputs[0].finish_reason for o in outputs] == ["stop", "error", "stop", "stop"]
        assert outputs[1].error.startswith("no token may come next: ")
        assert outputs[1].outputs[0].text == "ab"
        assert outputs[2].outputs[0].token_ids == [0]  # a token that may really come next


@slow
def test_a_grammar_that_cannot_be_used_is_refused_before_anything_is_queued(make):
    engine = make()
    for grammar in (Grammar("regex", "("), Grammar("json_schema", {"type": "x"})):
        with pytest.raises(RequestError, match=r"^grammar is "):
            engine.add_request("0", [1], SamplingParams(grammar=grammar))
        with pytest.raises(RequestError, match=r"^grammar is "):
            engine.check_request([1], SamplingParams(grammar=grammar))
    assert not engine.has_unfinished


@pytest.fixture(scope="module")
def small() -> LLM:
    return LLM(max_model_len=256)


@slow
def test_a_tool_call_that_is_demanded_arrives(small):
    """From a chat's body through the engine to a body, as a client sees it."""
    parameters = {
        "type": "object",
        "properties": {
            "party": {"type": "string", "enum": ["whig", "none"]},
            "years": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 2},
        },
        "required": ["party", "years"],
    }
    body = {
        "messages": [{"role": "user", "content": "Who won?"}],
        "tools": [{"type": "function", "function": {"name": "win", "parameters": parameters}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 1,
        "seed": 4,
        "max_tokens": 150,
        "n": 2,
    }
    engine = small.engine
    frontend = Frontend(engine.model, engine.config, ("small",))
    job = translate(parse_body(body, CHAT_URL), frontend)
    outputs = [
        engine.add_request(str(i), r.prompt_token_ids, r.params, r.prompt)
        for i, r in enumerate(job.requests)
    ]
    while engine.has_unfinished:
        engine.step()
    for choice in job.response(outputs)["choices"]:
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "win"
        jsonschema.validate(json.loads(call["function"]["arguments"]), parameters)


@slow
def test_the_small_model_writes_json(small):
    params = [
        SamplingParams(
            grammar=Grammar("json_schema", SCHEMA), max_tokens=120, temperature=t, seed=3
        )
        for t in (0.0, 0.8)
    ]
    for one in params:
        (output,) = small.generate(["The number of the year is"], one)
        assert output.outputs[0].finish_reason == "stop"
        jsonschema.validate(json.loads(output.outputs[0].text), SCHEMA)
