"""A chat's text as message and as deltas, in OpenAI's types."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from coachwhip.chat_template import ChatTemplate
from coachwhip.openai import CHAT_URL, Frontend
from coachwhip.openai.assistant_text import AssistantText
from coachwhip.openai.tools import Tool
from tests.openai.test_translate import finished, job_of

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"properties": {"city": {"type": "string"}, "day": {"type": "integer"}}},
        },
    }
]
CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=day>\n5\n"
    "</parameter>\n</function>\n</tool_call>"
)
TEXT = f"I need\nthe weather.\n</think>\n\nOne moment.\n\n{CALL}\n{CALL}"
THINKS = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
"""A chat template after which the model reasons."""


@pytest.fixture(scope="module")
def thinking(frontend) -> Frontend:
    """The small model with a template that opens reasoning."""
    found = replace(frontend)
    found.__dict__["chat_template"] = ChatTemplate({"default": THINKS}, {})
    return found


def calls(count: int) -> list[dict]:
    return [{"name": "weather", "arguments": '{"city": "Rome", "day": 5}'}] * count


def test_a_message_has_reasoning_content_and_calls(thinking):
    job = job_of(thinking, CHAT_URL, tools=TOOLS)
    body = job.response(finished(job, [TEXT]))
    choice = ChatCompletion.model_validate(body).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "One moment."
    assert choice.message.reasoning_content == "I need\nthe weather."
    assert [c.function.model_dump() for c in choice.message.tool_calls] == calls(2)
    assert len({c.id for c in choice.message.tool_calls}) == 2


def test_plain_chats_are_as_they_were(frontend):
    job = job_of(frontend, CHAT_URL)
    choice = job.response(finished(job, [TEXT]))["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_without_tools_calls_are_text(thinking):
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        job = job_of(thinking, CHAT_URL, **body)
        message = job.response(finished(job, [TEXT]))["choices"][0]["message"]
        assert message["content"] == f"One moment.\n\n{CALL}\n{CALL}"
        assert (
            message["reasoning_content"] == "I need\nthe weather." and "tool_calls" not in message
        )


def test_how_a_text_with_calls_ends(thinking):
    job = job_of(thinking, CHAT_URL, tools=TOOLS)
    for text, given_reason, reason in (
        (TEXT, "stop", "tool_calls"),
        (TEXT, "length", "length"),
        ("a</think>b", "stop", "stop"),
        (f"{CALL} in thought", "stop", "stop"),
    ):
        (output,) = finished(job, [text], given_reason)
        assert job.response([output])["choices"][0]["finish_reason"] == reason
        *_, last = streamed(job, [text], given_reason)
        assert last["finish_reason"] == reason


def test_a_reasoning_that_never_ends_leaves_no_answer(thinking):
    job = job_of(thinking, CHAT_URL)
    message = job.response(finished(job, ["I wonder"], "length"))["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("", "I wonder")


def streamed(job, pieces: list[str], reason: str = "stop") -> list[dict]:
    """Returns the choices of a stream's chunks, each taken by OpenAI's types."""
    writer = job.choice(0)
    choices = [writer.opening()]
    for i, piece in enumerate(pieces):
        choices.append(writer.chunk(piece, [], None, reason if i == len(pieces) - 1 else None))
    for choice in choices:
        ChatCompletionChunk.model_validate(job.chunk([choice]))
    return choices


def joined(choices: list[dict]) -> dict:
    """Puts deltas together as a client does."""
    message: dict = {"content": "", "reasoning_content": "", "tool_calls": []}
    for choice in choices:
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                assert call["id"] and call["type"] == "function" and call["function"]["name"]
                message["tool_calls"].append(dict(call["function"]))
            else:
                assert set(call) == {"index", "function"}
                known = message["tool_calls"][call["index"]]
                known["arguments"] += call["function"]["arguments"]
    return message


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, len(TEXT)), max_size=12).map(sorted))
def test_deltas_make_the_message_for_any_chunks(thinking, cuts):
    job = job_of(thinking, CHAT_URL, tools=TOOLS)
    pieces = [TEXT[a:b] for a, b in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
    choices = streamed(job, pieces)
    message = joined(choices)
    assert message == {
        "content": "One moment.",
        "reasoning_content": "I need\nthe weather.",
        "tool_calls": calls(2),
    }
    assert [c["finish_reason"] for c in choices] == [None] * len(pieces) + ["tool_calls"]


def test_arguments_stream_while_they_are_written():
    text = AssistantText([Tool.model_validate(TOOLS[0])])
    deltas = [text.feed(character) for character in CALL] + [text.feed("", last=True)]
    arguments = [call["function"]["arguments"] for d in deltas for call in d.get("tool_calls", ())]
    assert "".join(arguments) == '{"city": "Rome", "day": 5}'
    assert {"R", "o", "m", "e"} < set(arguments)
    assert json.loads("".join(arguments)) == {"city": "Rome", "day": 5}
