"""From bodies to engine requests, and back from outputs to bodies that OpenAI's types accept."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from coachwhip.logprobs import top_logprobs
from coachwhip.openai import CHAT_URL, COMPLETIONS_URL, ApiError, Frontend, parse_body, translate
from coachwhip.openai.translate import choice_seed
from coachwhip.outputs import CompletionOutput, RequestOutput

USER = {"role": "user", "content": "How is the state of the Union?"}


def job_of(frontend: Frontend, url: str = COMPLETIONS_URL, seed: int | None = None, **body):
    if url == COMPLETIONS_URL:
        body.setdefault("prompt", "We have")
    else:
        body.setdefault("messages", [USER])
    return translate(parse_body(json.dumps(body), url), frontend, default_seed=seed)


def finished(job, texts: list[str], reason: str = "stop") -> list[RequestOutput]:
    """Returns outputs as an engine would give them, their logits drawn by a fixed seed."""
    draw = np.random.default_rng(1)
    outputs = []
    for i, (request, text) in enumerate(zip(job.requests, texts, strict=True)):
        ids = job.frontend.tokenizer.encode(text, add_special_tokens=False)
        count, found = request.params.logprobs, None
        if count is not None:
            vocab = job.frontend.model.spec.vocab_size
            found = [top_logprobs(draw.normal(size=vocab).astype("f"), t, count) for t in ids]
        outputs.append(
            RequestOutput(
                str(i),
                request.prompt,
                request.prompt_token_ids,
                [CompletionOutput(0, text, ids, reason, None, found)],
                finished=True,
                num_cached_tokens=i + 1,
                num_drafted_tokens=3,
                num_accepted_tokens=1,
            )
        )
    return outputs


def refused(frontend: Frontend, url: str = COMPLETIONS_URL, **body) -> ApiError:
    with pytest.raises(ApiError) as caught:
        job_of(frontend, url, **body)
    return caught.value


def test_each_prompt_and_choice_is_a_request_with_its_own_seed(frontend):
    job = job_of(frontend, prompt=["We have", "I am"], n=3, seed=5, max_tokens=4)
    assert [r.prompt for r in job.requests] == ["We have"] * 3 + ["I am"] * 3
    seeds = [r.params.seed for r in job.requests]
    assert seeds[:3] == seeds[3:] == [5, choice_seed(5, 1), choice_seed(5, 2)]
    assert len(set(seeds)) == 3
    assert all(r.params.max_tokens == 4 for r in job.requests)
    assert job.requests[0].prompt_token_ids == frontend.tokenizer.encode("We have")


def test_a_default_seed_gives_way_to_the_body(frontend):
    assert job_of(frontend, seed=9).requests[0].params.seed == 9
    body = parse_body({"prompt": "a", "seed": 3}, COMPLETIONS_URL)
    assert translate(body, frontend, default_seed=9).requests[0].params.seed == 3
    assert job_of(frontend).requests[0].params.seed is None


def test_parameters_reach_the_engine(frontend):
    params = (
        job_of(
            frontend,
            CHAT_URL,
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.1,
            stop=["a", "b"],
            stop_token_ids=[4],
            logit_bias={"17": -3},
            bad_words="no",
            presence_penalty=1,
            frequency_penalty=0.5,
            repetition_penalty=1.5,
            min_tokens=2,
            max_completion_tokens=8,
            ignore_eos=True,
            logprobs=True,
            top_logprobs=3,
        )
        .requests[0]
        .params
    )
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 7, 0.1)
    assert (params.stop, params.stop_token_ids, params.bad_words) == (("a", "b"), (4,), ("no",))
    assert params.logit_bias == {17: -3.0} and params.ignore_eos
    assert (params.min_tokens, params.max_tokens, params.logprobs) == (2, 8, 3)
    assert params.presence_penalty == 1 and params.frequency_penalty == 0.5
    assert params.repetition_penalty == 1.5


def test_lengths_that_are_left_open(frontend):
    assert job_of(frontend).requests[0].params.max_tokens == 16
    assert job_of(frontend, min_tokens=40).requests[0].params.max_tokens == 40
    assert job_of(frontend, CHAT_URL).requests[0].params.max_tokens is None


def test_temperature_is_the_models_own_or_one(frontend):
    assert job_of(frontend).requests[0].params.temperature == 0  # do_sample: false

    def defaults(**given):
        model = replace(frontend.model, generation_defaults=given)
        return job_of(replace(frontend, model=model)).requests[0].params

    assert defaults().temperature == 1
    params = defaults(do_sample=True, temperature=0.6, top_p=0.95, top_k=20)
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.95, 20)


def test_a_conversation_goes_through_the_template(frontend):
    job = job_of(frontend, CHAT_URL, messages=[{"role": "developer", "content": "Now."}, USER])
    assert "Now." in job.requests[0].prompt and "I answer that" in job.requests[0].prompt
    expected = frontend.tokenizer.encode(job.requests[0].prompt, add_special_tokens=False)
    assert job.requests[0].prompt_token_ids == expected


@pytest.mark.parametrize(
    "url, body, param, part",
    [
        (COMPLETIONS_URL, {"temperature": -1}, "temperature", "temperature is -1"),
        (COMPLETIONS_URL, {"logprobs": 50}, "logprobs", "logprobs is 50"),
        (COMPLETIONS_URL, {"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        (COMPLETIONS_URL, {"prompt": [999999]}, "prompt", "prompt_token_ids[0] is 999999"),
        (COMPLETIONS_URL, {"priority": 3}, "priority", "priority is 3"),
        (COMPLETIONS_URL, {"cache_salt": ""}, "cache_salt", "non-empty"),
        (COMPLETIONS_URL, {"stop": ["a"] * 5}, "stop", "up to 4"),
        (COMPLETIONS_URL, {"logit_bias": {"x": 1}}, "logit_bias", "logit_bias is"),
        (COMPLETIONS_URL, {"speculative_config": {"k": 1}}, "speculative_config", "may give"),
        (CHAT_URL, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21"),
        (CHAT_URL, {"max_completion_tokens": -2}, "max_completion_tokens", "is -2"),
        (CHAT_URL, {"messages": [{"role": "tool", "content": "x"}]}, "messages", "template"),
    ],
)
def test_what_cannot_be_served_is_a_400_with_its_field(frontend, url, body, param, part):
    error = refused(frontend, url, **body)
    assert (error.status, error.param) == (400, param)
    assert part in error.message


@pytest.mark.parametrize("url", [COMPLETIONS_URL, CHAT_URL])
def test_too_long_a_prompt_says_both_numbers(frontend, url):
    long = "union " * 400
    body = {"prompt": long} if url == COMPLETIONS_URL else {"messages": [{**USER, "content": long}]}
    error = refused(frontend, url, **body)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    counts = [int(word) for word in re.findall(r"\d+", error.message)]
    assert counts[0] == 256 and counts[1] > 300
    ids = refused(frontend, prompt=[5] * 256)
    assert ids.code == "context_length_exceeded" and "has 256" in ids.message


def test_an_endless_prompt_is_refused_before_it_is_tokenized(frontend, monkeypatch):
    monkeypatch.setattr(type(frontend.tokenizer), "encode", lambda *_, **__: pytest.fail("encoded"))
    error = refused(frontend, prompt="x" * 1_000_000)
    assert error.code == "context_length_exceeded" and "at least" in error.message


def test_models_by_name(frontend):
    assert job_of(frontend).model == "small"
    assert job_of(frontend, model="other-name").model == "other-name"
    error = refused(frontend, model="gpt-x")
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert '"gpt-x"' in error.message and "small, other-name" in error.message
    anything = Frontend(frontend.model, frontend.config, ("small",), any_model=True)
    assert job_of(anything, model="gpt-x").model == "small"


def test_a_completion_response_is_what_openai_has(frontend):
    job = job_of(frontend, prompt=["We have", "I am"], n=2, logprobs=2, temperature=1)
    body = job.response(finished(job, [" a choice", " one", " and more", " two"]))
    parsed = Completion.model_validate(body, strict=True)
    assert [c.text for c in parsed.choices] == [" a choice", " one", " and more", " two"]
    assert [c.index for c in parsed.choices] == [0, 1, 2, 3]
    assert parsed.id.startswith("cmpl-") and parsed.object == "text_completion"
    logprobs = parsed.choices[0].logprobs
    assert "".join(logprobs.tokens) == " a choice"
    assert logprobs.text_offset[0] == 0
    for token, at in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert " a choice"[at:].startswith(token)
    assert all(len(top) in (2, 3) for top in logprobs.top_logprobs)
    assert all(lp <= 0 and math.isfinite(lp) for lp in logprobs.token_logprobs)
    prompts = [len(frontend.tokenizer.encode(p)) for p in ("We have", "I am")]
    usage = parsed.usage
    assert usage.prompt_tokens == sum(prompts)
    texts = [" a choice", " one", " and more", " two"]
    encode = frontend.tokenizer.encode
    assert usage.completion_tokens == sum(len(encode(t, add_special_tokens=False)) for t in texts)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 1 + 3
    assert usage.completion_tokens_details.accepted_prediction_tokens == 4
    assert usage.completion_tokens_details.rejected_prediction_tokens == 8


def test_echo_puts_the_prompt_before_the_text(frontend):
    job = job_of(frontend, echo=True, n=2, temperature=1)
    body = job.response(finished(job, [" a", " b"]))
    assert [c["text"] for c in body["choices"]] == ["We have a", "We have b"]
    ids = frontend.tokenizer.encode("We have")
    job = job_of(frontend, prompt=ids, echo=True)
    assert job.response(finished(job, [" a"]))["choices"][0]["text"] == "We have a"


def test_a_chat_response_is_what_openai_has(frontend):
    job = job_of(frontend, CHAT_URL, n=2, logprobs=True, top_logprobs=2, temperature=1)
    body = job.response(finished(job, [" é one", " two"], reason="length"))
    parsed = ChatCompletion.model_validate(body, strict=True)
    first = parsed.choices[0]
    assert (first.message.role, first.message.content) == ("assistant", " é one")
    assert first.finish_reason == "length"
    content = first.logprobs.content
    assert bytes(b for entry in content for b in entry.bytes).decode() == " é one"
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    assert any(entry.token.startswith("bytes:") for entry in content) or "é" in "".join(
        entry.token for entry in content
    )


def test_no_logprobs_unless_asked_for(frontend):
    job = job_of(frontend, CHAT_URL)
    assert job.response(finished(job, ["x"]))["choices"][0]["logprobs"] is None
    job = job_of(frontend, CHAT_URL, logprobs=True)
    content = job.response(finished(job, ["We"]))["choices"][0]["logprobs"]["content"]
    for entry in content:
        assert entry["top_logprobs"] == [] and entry["logprob"] < 0


def test_chunks_add_up_to_the_whole(frontend):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    job = job_of(frontend, CHAT_URL, logprobs=True, top_logprobs=1, **options)
    (output,) = finished(job, [" one two"])
    made, text = output.outputs[0], output.outputs[0].text
    choice = job.choice(0)
    chunks = [job.chunk([choice.opening()])]
    chunks += [job.chunk([choice.chunk(text[:4], made.token_ids[:1], made.logprobs[:1])])]
    chunks += [job.chunk([choice.chunk(text[4:], made.token_ids[1:], made.logprobs[1:], "stop")])]
    chunks += [job.chunk([], job.usage([output]))]
    parsed = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
    assert parsed[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in parsed[:-1]) == text
    assert parsed[2].choices[0].finish_reason == "stop"
    assert parsed[-1].choices == [] and parsed[-1].usage.completion_tokens == len(made.token_ids)
    whole = job.response([output])["choices"][0]["logprobs"]["content"]
    streamed = [e for c in chunks[1:-1] for e in c["choices"][0]["logprobs"]["content"]]
    assert streamed == whole
    job = job_of(frontend, logprobs=1, stream=True)
    (output,) = finished(job, [" one two"])
    made, choice = output.outputs[0], job.choice(0)
    parts = [
        choice.chunk("", [i], [lp]) for i, lp in zip(made.token_ids, made.logprobs, strict=True)
    ]
    offsets = [at for part in parts for at in part["logprobs"]["text_offset"]]
    assert offsets == job.choice(0).whole(output)["logprobs"]["text_offset"]


def test_a_text_that_failed_is_an_error_not_a_response(frontend):
    job = job_of(frontend)
    outputs = finished(job, ["x"], reason="error")
    outputs[0].error = "logits are not finite"
    with pytest.raises(ApiError) as caught:
        job.response(outputs)
    assert caught.value.status == 500 and "logits are not finite" in caught.value.message
    assert caught.value.body()["error"]["type"] == "server_error"


def test_echo_with_logprobs_scores_the_prompt_too(frontend):
    job = job_of(frontend, echo=True, logprobs=1, max_tokens=0)
    params = job.requests[0].params
    assert (params.max_tokens, params.prompt_logprobs) == (0, 1)
    (output,) = finished(job, [""])
    ids = job.requests[0].prompt_token_ids
    output.prompt_logprobs = [None, *({token: -1.5} for token in ids[1:])]
    choice = job.response([output])["choices"][0]
    assert choice["text"] == "We have"
    assert choice["logprobs"]["token_logprobs"] == [None, *[-1.5] * (len(ids) - 1)]
    assert choice["logprobs"]["text_offset"][:2] == [0, 0]
    assert job.choice(0).opening() is None
    assert job.choice(0).prompt(output) == choice | {"finish_reason": None}
    assert job_of(frontend, CHAT_URL, logprobs=True).requests[0].params.prompt_logprobs is None
