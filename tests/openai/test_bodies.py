"""Bodies: every documented field is taken, and a wrong value is refused by name and value."""

import json

import pytest

from coachwhip.openai import CHAT_URL, COMPLETIONS_URL, ApiError, parse_body

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def refused(url: str, body: object) -> ApiError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as caught:
        parse_body(raw, url)
    return caught.value


def chat(**fields) -> dict:
    return {"model": "small", "messages": [USER], **fields}


def completion(**fields) -> dict:
    return {"model": "small", "prompt": "hello", **fields}


COMMON = {
    "n": 2,
    "seed": 7,
    "max_tokens": 9,
    "min_tokens": 1,
    "temperature": 1,
    "top_p": 0.5,
    "top_k": 4,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"17": -100},
    "bad_words": ["no"],
    "stop": "end",
    "stop_token_ids": [3],
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "text"},
    "cache_salt": "alice",
    "priority": 0,
    "speculative_config": {"num_speculative_tokens": 0},
    "user": "alice",
    "metadata": {"a": "b"},
}


def test_all_fields_of_a_completion_are_known():
    body = parse_body(
        completion(**COMMON, best_of=2, echo=True, logprobs=3, suffix=None), COMPLETIONS_URL
    )
    assert body.ignored_fields == []
    assert body.stop == ("end",) and body.num_choices == 2 and body.num_logprobs == 3


def test_all_fields_of_a_chat_are_known():
    fields = {
        "max_completion_tokens": 9,
        "logprobs": True,
        "top_logprobs": 2,
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low",
        "modalities": ["text"],
    }
    body = parse_body(chat(**COMMON, **fields), CHAT_URL)
    assert body.ignored_fields == []
    assert body.num_logprobs == 2
    assert body.template_variables == {"enable_thinking": False, "reasoning_effort": "low"}


def test_null_is_not_given():
    for url, make in ((CHAT_URL, chat), (COMPLETIONS_URL, completion)):
        fields = dict.fromkeys(COMMON)
        assert parse_body(make(**fields), url).num_choices == 1


def test_unknown_fields_are_collected():
    body = parse_body(
        completion(return_token_ids=True, routed_by="x", nothing=None), "/v1/completions"
    )
    assert body.ignored_fields == ["return_token_ids", "routed_by"]


@pytest.mark.parametrize(
    "prompt, prompts",
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ("", [""]),
    ],
)
def test_a_prompt_has_four_forms(prompt, prompts):
    assert parse_body(completion(prompt=prompt), COMPLETIONS_URL).prompts == prompts


def test_messages_become_plain_text_for_templates():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be"}]},
        {"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "3", "name": "add"},
    ]
    body = parse_body(chat(messages=messages), CHAT_URL)
    system, user, assistant, tool = [m.for_template() for m in body.messages]
    assert system == {"role": "system", "content": "be"}
    assert user == {"role": "user", "content": "1\n2"}
    assert assistant["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert assistant["reasoning_content"] == "hm" and "content" not in assistant
    assert tool == messages[3]


@pytest.mark.parametrize(
    "fields, param, part",
    [
        ({"temperature": "5"}, "temperature", 'temperature is "5": give a number'),
        ({"temperature": True}, "temperature", "temperature is true: give a number"),
        ({"top_p": [1]}, "top_p", "top_p is [1]"),
        ({"n": 1.5}, "n", "n is 1.5: give a whole number"),
        ({"n": 0}, "n", "n is 0"),
        ({"n": 1000000}, "n", "from 1 to 128"),
        ({"n": True}, "n", "n is true"),
        ({"max_tokens": "9"}, "max_tokens", "give a whole number"),
        ({"stream": "yes"}, "stream", "give true or false"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "true or false"),
        ({"stop": [1]}, "stop", "stop is [1]"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]", "give a whole number"),
        ({"logit_bias": [1]}, "logit_bias", "give an object"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "'json_object'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.type", "go together"),
        ({"user": 5}, "user", "give a text"),
        ({"model": 5}, "model", "give a text"),
    ],
)
@pytest.mark.parametrize("url, make", [(CHAT_URL, chat), (COMPLETIONS_URL, completion)])
def test_wrong_values_are_named(url, make, fields, param, part):
    error = refused(url, make(**fields))
    assert (error.status, error.param) == (400, param)
    assert part in error.message and "\n" not in error.message


@pytest.mark.parametrize(
    "fields, param, part",
    [
        ({"prompt": None}, "prompt", "prompt is null: give a text"),
        ({"prompt": []}, "prompt", "prompt is []"),
        ({"prompt": [1, "a"]}, "prompt", "give a text"),
        ({"prompt": [[]]}, "prompt", "give a text"),
        ({"prompt": [True]}, "prompt", "give a text"),
        ({"prompt": [-1]}, "prompt", "give a text"),
        ({"suffix": "x"}, "suffix", 'suffix is "x": inserting text is not supported'),
        ({"best_of": 3}, "best_of", "best_of is 3: it must equal n, 1"),
        ({"logprobs": True}, "logprobs", "give a whole number"),
    ],
)
def test_wrong_values_of_completions(fields, param, part):
    error = refused(COMPLETIONS_URL, completion(**fields))
    assert (error.status, error.param) == (400, param)
    assert part in error.message


@pytest.mark.parametrize(
    "fields, param, part",
    [
        ({"messages": []}, "messages", "messages is []"),
        ({"messages": "hi"}, "messages", "give a list"),
        ({"messages": ["hi"]}, "messages[0]", "give an object"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "has a text"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is missing"),
        ({"messages": [{"role": "x", "content": ""}]}, "messages[0].role", 'role is "x": give'),
        ({"messages": [{**USER, "content": 5}]}, "messages[0].content", "content is 5"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content",
            'part 0 is of type "image_url"',
        ),
        ({"messages": [{**USER, "content": ["x"]}]}, "messages[0].content", "part 0"),
        ({"messages": [{**USER, "tool_calls": [{"function": {"name": "f"}}]}]}, None, "assistant"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "{"}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
            "give the text of a JSON object",
        ),
        *(
            (
                {
                    "messages": [
                        {
                            "role": "assistant",
                            "tool_calls": [{"function": {"name": "f", "arguments": text}}],
                        }
                    ]
                },
                "messages[0].tool_calls[0].function.arguments",
                "give the text of a JSON object",
            )
            for text in ('{"a": NaN}', '{"a": "\\ud800"}', '{"a": %s}' % ("[" * 600 + "]" * 600))
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": text}}],
                    }
                    for text in ("{}", '{"a": "\\ud800"}')  # the tokenizer takes no half a pair
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
            "give the text of a JSON object",
        ),
        ({"logprobs": 5}, "logprobs", "give true or false"),
        ({"top_logprobs": 2}, "top_logprobs", "it needs logprobs: true"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type", "'function'"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "letters",
        ),
        ({"tool_choice": "required"}, "tool_choice", "it needs tools"),
        ({"tool_choice": "always", "tools": [TOOL]}, "tool_choice", "give none, auto"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [TOOL]},
            "tool_choice.function.name",
            "tools has add",
        ),
        ({"functions": []}, "functions", "use tools"),
        ({"modalities": ["audio"]}, "modalities", "text only"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "give one of the two"),
    ],
)
def test_wrong_values_of_chats(fields, param, part):
    error = refused(CHAT_URL, chat(**fields))
    assert error.status == 400
    assert param is None or error.param == param
    assert part in error.message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800 alone"}',
        b'{"prompt": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "a", "n": ' + b"9" * 100_000 + b"}",
    ],
)
@pytest.mark.parametrize("url", [CHAT_URL, COMPLETIONS_URL])
def test_hostile_bytes_are_refused_in_one_short_line(url, raw):
    error = refused(url, raw)
    assert error.status == 400
    assert "\n" not in error.message and len(error.message) < 400
    assert error.body()["error"]["type"] == "invalid_request_error"
