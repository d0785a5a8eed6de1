"""Forms, tools and reasoning through OpenAI's client, whole and streamed."""

from __future__ import annotations

import json
from typing import Literal

import openai
import pytest
from jsonschema import validate
from pydantic import BaseModel, ConfigDict

from tests.serve.server import Server

MESSAGES = [{"role": "user", "content": "What about the Navy?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["ship", "port"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "name": {"type": "string", "maxLength": 8},
    },
    "required": ["kind", "count", "name"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
PARAMETERS = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}, "sure": {"type": "boolean"}},
    "required": ["side", "sure"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "turn", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}},
]
MORE = {"model": "small", "messages": MESSAGES, "max_tokens": 200}


def text_of(stream) -> tuple[str, str]:
    """Returns content and finish reason of a stream."""
    text, reason = "", None
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    return text, reason


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_follows_its_schema(client: openai.OpenAI, temperature: float) -> None:
    more = MORE | {"temperature": temperature, "seed": 4, "response_format": FORMAT}
    found = client.chat.completions.create(**more, n=2 if temperature else 1)
    for choice in found.choices:
        assert choice.finish_reason == "stop"
        validate(json.loads(choice.message.content), SCHEMA)
    text, reason = text_of(client.chat.completions.create(**more, stream=True))
    assert (text, reason) == (found.choices[0].message.content, "stop")


def test_drafts_change_no_token_of_a_form(client: openai.OpenAI) -> None:
    more = MORE | {"temperature": 1.0, "seed": 9, "response_format": FORMAT}
    none = {"speculative_config": {"num_speculative_tokens": 0}}
    with_drafts = client.chat.completions.create(**more)
    without = client.chat.completions.create(**more, extra_body=none)
    assert with_drafts.choices[0].message == without.choices[0].message
    assert with_drafts.usage.completion_tokens_details.accepted_prediction_tokens > 0
    assert without.usage.completion_tokens_details.accepted_prediction_tokens == 0


class Ship(BaseModel):
    """An answer as the client's own parser wants it."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["frigate", "sloop"]
    guns: Literal[20, 44]


def test_the_client_parses_answers_into_its_models(client: openai.OpenAI) -> None:
    found = client.chat.completions.parse(**MORE, response_format=Ship)
    assert isinstance(found.choices[0].message.parsed, Ship)


def test_any_object_is_an_object_or_was_cut(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        **MORE | {"max_tokens": 40}, response_format={"type": "json_object"}
    )
    choice = found.choices[0]
    assert choice.message.content.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize(
    "schema", [{"type": "strin"}, {"type": "object", "not": {}}, {"$ref": "#/nowhere"}]
)
def test_schemas_that_cannot_be_followed_are_refused(client: openai.OpenAI, schema) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**MORE, response_format=wanted)
    assert error.value.param.startswith("response_format")


def calls_of(stream) -> tuple[list[dict], str, str]:
    """Returns the calls of a stream, its content and its finish reason."""
    calls, text, reason = [], "", None
    for chunk in stream:
        delta = chunk.choices[0].delta
        text += delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
        for call in delta.tool_calls or ():
            if call.index == len(calls):
                assert call.id and call.type == "function"
                calls.append({"name": call.function.name, "arguments": ""})
            calls[call.index]["arguments"] += call.function.arguments
    return calls, text, reason


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "turn"}}], ids=str
)
def test_a_call_that_is_demanded_comes_whole_and_in_pieces(client: openai.OpenAI, choice) -> None:
    more = MORE | {"tools": TOOLS[:1], "tool_choice": choice, "parallel_tool_calls": False}
    more |= {"temperature": 1.0, "seed": 2}
    found = client.chat.completions.create(**more).choices[0]
    assert found.finish_reason == "tool_calls" and not found.message.content
    (call,) = found.message.tool_calls
    assert call.type == "function" and call.function.name == "turn"
    validate(json.loads(call.function.arguments), PARAMETERS)
    calls, text, reason = calls_of(client.chat.completions.create(**more, stream=True))
    assert (text, reason) == ("", "tool_calls")
    assert calls == [{"name": "turn", "arguments": call.function.arguments}]


def test_tools_that_are_not_called_change_nothing(client: openai.OpenAI) -> None:
    more = MORE | {"max_tokens": 12, "temperature": 0}
    plain = client.chat.completions.create(**more).choices[0]
    for choice in ("auto", "none"):
        with_tools = client.chat.completions.create(**more, tools=TOOLS, tool_choice=choice)
        assert with_tools.choices[0].message == plain.message
        stream = client.chat.completions.create(
            **more, tools=TOOLS, tool_choice=choice, stream=True
        )
        assert calls_of(stream) == ([], plain.message.content, "length")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, None),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "poem"}}, "response_format"),
    ],
)
def test_wrong_tools_and_forms(client: openai.OpenAI, change: dict, param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**MORE | change)
    assert param is None or error.value.param.startswith(param)


def test_a_crowd_of_forms_leaves_nothing_behind(server: Server, client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        **MORE, n=8, temperature=1.0, seed=1, response_format=FORMAT
    )
    for choice in found.choices:
        validate(json.loads(choice.message.content), SCHEMA)
    assert server.wait_until_idle()["slots"]["live"] == 0
