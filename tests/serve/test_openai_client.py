"""The official client against the server: what it sends, and types of its own for what it gets."""

from __future__ import annotations

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

PROMPT = "The state of the Union is"
MESSAGES = [{"role": "user", "content": "What about the Navy?"}]


def checked(model: object) -> object:
    """Returns a response of the client, whose fields all have the kinds that its types say."""
    type(model).model_validate(model.model_dump(), strict=False)
    assert not model.model_extra, model.model_extra
    return model


def test_completion(client: openai.OpenAI) -> None:
    found = checked(client.completions.create(model="small", prompt=PROMPT, max_tokens=12))
    assert isinstance(found, Completion)
    (choice,) = found.choices
    assert choice.finish_reason == "length" and choice.text
    usage = found.usage
    assert usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12
    details = usage.completion_tokens_details
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens > 0


def test_completions_of_several_prompts_in_all_forms(client: openai.OpenAI) -> None:
    def texts(prompt: object) -> list[str]:
        found = checked(client.completions.create(model="small", prompt=prompt, max_tokens=5))
        assert [c.index for c in found.choices] == list(range(len(found.choices)))
        return [c.text for c in found.choices]

    (alone,) = texts(PROMPT)
    assert texts([PROMPT, "Another", PROMPT])[::2] == [alone, alone]
    ids = client.post("/../tokenize", body={"prompt": PROMPT}, cast_to=object)["tokens"]
    assert texts(ids) == [alone]
    assert texts([ids, ids]) == [alone, alone]


def test_a_stream_is_the_response_in_pieces(client: openai.OpenAI) -> None:
    more = {"model": "small", "prompt": PROMPT, "max_tokens": 24, "logprobs": 2, "temperature": 0}
    whole = client.completions.create(**more).choices[0]
    chunks = list(client.completions.create(**more, stream=True))
    assert len(chunks) > 3
    checked(chunks[-1])  # the type has no null finish_reason, which all before it have
    choices = [chunk.choices[0] for chunk in chunks]
    assert "".join(c.text for c in choices) == whole.text
    assert [c.finish_reason for c in choices] == [None] * (len(chunks) - 1) + ["length"]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        pieces = [part for c in choices for part in getattr(c.logprobs, name)]
        assert pieces == getattr(whole.logprobs, name)


def test_chat(client: openai.OpenAI) -> None:
    found = checked(
        client.chat.completions.create(model="small", messages=MESSAGES, max_completion_tokens=9)
    )
    assert isinstance(found, ChatCompletion)
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].message.content
    assert found.usage.completion_tokens == 9


def test_chat_stream(client: openai.OpenAI) -> None:
    more = {"model": "small", "messages": MESSAGES, "max_tokens": 16, "logprobs": True}
    more |= {"top_logprobs": 3, "temperature": 0}
    whole = checked(client.chat.completions.create(**more)).choices[0]
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(**more, stream=True, stream_options=options))
    assert all(isinstance(checked(chunk), ChatCompletionChunk) for chunk in chunks)
    *told, last = chunks
    assert told[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in told)
    assert last.choices == [] and last.usage.completion_tokens == 16
    text = "".join(chunk.choices[0].delta.content or "" for chunk in told)
    assert text == whole.message.content
    assert told[-1].choices[0].finish_reason == "length"
    contents = [c.choices[0].logprobs.content for c in told if c.choices[0].logprobs]
    assert [entry for content in contents for entry in content] == whole.logprobs.content
    assert all(len(entry.top_logprobs) == 3 for entry in whole.logprobs.content)


def test_n_choices_differ_and_repeat_with_a_seed(client: openai.OpenAI) -> None:
    def texts(**more) -> list[str]:
        found = client.chat.completions.create(
            model="small", messages=MESSAGES, max_tokens=12, temperature=1.0, **more
        )
        checked(found)
        assert [c.index for c in found.choices] == list(range(len(found.choices)))
        return [c.message.content for c in found.choices]

    three = texts(n=3, seed=5)
    assert len(set(three)) == 3
    assert texts(n=3, seed=5) == three
    assert texts(seed=5) == three[:1]
    assert texts(n=3, seed=6) != three


def test_n_choices_of_a_stream_are_those_of_the_response(client: openai.OpenAI) -> None:
    more = {"model": "small", "prompt": [PROMPT, "My fellow"], "max_tokens": 10, "n": 2}
    more |= {"temperature": 1.0, "seed": 3}
    whole = [c.text for c in client.completions.create(**more).choices]
    texts = [""] * 4
    for chunk in client.completions.create(**more, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == whole


def test_a_stop_string_ends_the_text_and_is_not_in_it(client: openai.OpenAI) -> None:
    more = {"model": "small", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    free = client.completions.create(**more).choices[0].text
    stop = free[20:26]
    whole = client.completions.create(**more, stop=stop).choices[0]
    assert whole.finish_reason == "stop"
    assert whole.text == free[: free.index(stop)]
    streamed = list(client.completions.create(**more, stop=[stop, "\0"], stream=True))
    assert "".join(c.choices[0].text for c in streamed) == whole.text
    assert streamed[-1].choices[0].finish_reason == "stop"


def test_echo_puts_the_prompt_before_the_text(client: openai.OpenAI) -> None:
    more = {"model": "small", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    text = client.completions.create(**more).choices[0].text
    assert client.completions.create(**more, echo=True).choices[0].text == PROMPT + text
    streamed = client.completions.create(**more, echo=True, stream=True)
    assert "".join(c.choices[0].text for c in streamed) == PROMPT + text


def test_echo_scores_the_prompt(client: openai.OpenAI) -> None:
    more = {"model": "small", "prompt": PROMPT, "logprobs": 2, "temperature": 0}
    text = client.completions.create(**more, max_tokens=5).choices[0]
    # Unchecked: the type has no null among log probabilities, which the first token has.
    whole = client.completions.create(**more, max_tokens=5, echo=True).choices[0]
    assert whole.text == PROMPT + text.text
    scores = whole.logprobs
    assert scores.token_logprobs[0] is None and scores.tokens[-5:] == text.logprobs.tokens
    assert scores.token_logprobs[-5:] == text.logprobs.token_logprobs
    assert len(scores.tokens) == len(scores.top_logprobs) == len(scores.token_logprobs)
    assert all(
        whole.text[at:].startswith(token) or token == "<s>"
        for token, at in zip(scores.tokens, scores.text_offset, strict=True)
    )
    # What evaluation harnesses ask for: the prompt's own, and no text.
    alone = client.completions.create(**more, max_tokens=0, echo=True).choices[0]
    assert alone.text == PROMPT and alone.finish_reason == "length"
    assert alone.logprobs.token_logprobs == scores.token_logprobs[:-5]
    streamed = list(client.completions.create(**more, max_tokens=5, echo=True, stream=True))
    choices = [chunk.choices[0] for chunk in streamed]
    assert choices[0].text == PROMPT and "".join(c.text for c in choices) == whole.text
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        pieces = [part for c in choices for part in getattr(c.logprobs, name)]
        assert pieces == getattr(scores, name)


def test_a_prompt_that_comes_again_is_cached_but_for_other_salts(client: openai.OpenAI) -> None:
    def cached(salt: str | None) -> int:
        found = client.completions.create(
            model="small",
            prompt="We the people " * 60,
            max_tokens=1,
            extra_body={} if salt is None else {"cache_salt": salt},
        )
        return found.usage.prompt_tokens_details.cached_tokens

    assert cached("first") == 0
    assert cached("first") > 0
    assert cached("second") == 0


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert isinstance(model, Model) and model.id == "small" and model.max_model_len == 4096
    assert client.models.retrieve("small").id == "small"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("large")
    assert error.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("change", "kind", "param", "code"),
    [
        ({"model": "large"}, openai.NotFoundError, "model", "model_not_found"),
        ({"messages": []}, openai.BadRequestError, "messages", "invalid_value"),
        ({"temperature": -1}, openai.BadRequestError, "temperature", "invalid_value"),
        ({"n": 0}, openai.BadRequestError, "n", "invalid_value"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens", "invalid_value"),
        ({"top_logprobs": 21, "logprobs": True}, openai.BadRequestError, None, "invalid_value"),
        ({"stop": list("abcde")}, openai.BadRequestError, "stop", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": "the " * 5000}]},
            openai.BadRequestError,
            "messages",
            "context_length_exceeded",
        ),
    ],
)
def test_errors(client: openai.OpenAI, change: dict, kind, param, code) -> None:
    with pytest.raises(kind) as error:
        client.chat.completions.create(**{"model": "small", "messages": MESSAGES} | change)
    assert error.value.code == code and error.value.type == "invalid_request_error"
    assert error.value.message and (param is None or error.value.param == param)


def test_the_id_of_a_request_comes_back(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model="small",
        messages=MESSAGES,
        max_tokens=1,
        extra_headers={"X-Request-Id": "mine-17"},
    )
    assert found._request_id == "mine-17"


def test_unknown_fields_are_named_in_a_header(client: openai.OpenAI) -> None:
    found = client.completions.with_raw_response.create(
        model="small", prompt="a", max_tokens=1, extra_body={"x\nkey": 1, "router_hint": 2}
    )
    assert found.headers["x-ignored-fields"] == "router_hint, x\\nkey"


async def _async_text(url: str) -> str:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        stream = await client.completions.create(
            model="small", prompt=PROMPT, max_tokens=6, stream=True, temperature=0
        )
        return "".join([chunk.choices[0].text async for chunk in stream])


def test_the_asynchronous_client(server, client: openai.OpenAI) -> None:
    import asyncio

    whole = client.completions.create(model="small", prompt=PROMPT, max_tokens=6, temperature=0)
    assert asyncio.run(_async_text(server.url)) == whole.choices[0].text
