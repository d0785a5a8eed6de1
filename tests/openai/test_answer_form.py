"""`response_format` and `tool_choice` as grammars: what they allow, and what is refused."""

import json

import pytest

from coachwhip import Grammar
from coachwhip.openai import CHAT_URL, COMPLETIONS_URL, ApiError, parse_body
from coachwhip.openai.answer_form import answer_grammar
from coachwhip.openai.assistant_text import AssistantText
from coachwhip.sampling.guidance import Guidance
from coachwhip.tokenizer import Tokenizer
from tests.openai.test_translate import job_of, refused
from tests.reference.byte_tokenizer import save_byte_tokenizer

END = 2
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "$defs": {"day": {"type": "integer", "minimum": 1, "maximum": 31}},
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                    "day": {"$ref": "#/$defs/day"},
                    "place": {"type": "object", "not": {"required": ["x"]}},
                },
                "required": ["city", "day"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"


def weather(**values: str) -> str:
    inside = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function=weather>\n{inside}</function>\n</tool_call>"


WEATHER = weather(city="New\nYork </par", day="31")


@pytest.fixture(scope="module", params=["marks are tokens", "marks are characters"])
def model(request, tmp_path_factory, frontend):
    """A tokenizer with the marks as tokens, and the small model's without; what a text begins."""
    if request.param == "marks are characters":
        tokenizer, vocab = frontend.tokenizer, frontend.model.spec.vocab_size
    else:
        folder = tmp_path_factory.mktemp("tokenizer")
        save_byte_tokenizer(folder)
        tokenizer, vocab = Tokenizer.beside(folder), 512
    guidance = Guidance(tokenizer, vocab, [END])

    def taken(grammar: Grammar, text: str) -> str | None:
        """Returns "whole" or "begun", or None for a text that is not in the grammar."""
        guide = guidance.guide(grammar)
        ids = tokenizer.encode(text, add_special_tokens=False)
        if guide.allowed(ids) < len(ids):
            return None
        for token in ids:
            guide.append(token)
        return "whole" if guide.ended or guide.refusal(END) is None else "begun"

    return tokenizer, taken


def grammar_of(model, reasons: bool = False, url: str = CHAT_URL, **body) -> Grammar | None:
    key, value = ("prompt", "a") if url == COMPLETIONS_URL else ("messages", None)
    body[key] = value or [{"role": "user", "content": "a"}]
    return answer_grammar(parse_body(body, url), reasons, model[0].added_token)


def test_free_texts_have_no_grammar(model):
    for body in (
        {},
        {"response_format": {"type": "text"}},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "auto"},
        {"tools": TOOLS, "tool_choice": "none"},
    ):
        assert grammar_of(model, **body) is None
        assert grammar_of(model, reasons=True, **body) is None


def test_forms_of_answers(model):
    for url in (CHAT_URL, COMPLETIONS_URL):
        assert grammar_of(model, url=url, response_format={"type": "json_object"}) == Grammar(
            "json_object"
        )
        assert grammar_of(model, url=url, response_format=FORMAT) == Grammar("json_schema", SCHEMA)
        bare = {"type": "json_schema", "json_schema": {"name": "a"}}
        assert grammar_of(model, url=url, response_format=bare) == Grammar("json_schema", {})


CASES = [
    ({"response_format": FORMAT}, True, 'Well.\n</think>\n\n{"a": 1}', "whole"),
    ({"response_format": FORMAT}, True, '</think>{"a":1}', "whole"),
    ({"response_format": FORMAT}, True, "I wonder {", "begun"),
    ({"response_format": FORMAT}, True, "a</think>b", None),
    ({"response_format": FORMAT}, True, 'a</think>{"b": 1}', None),
    ({"response_format": {"type": "json_object"}}, True, 'a</think>\n{"b": [1]}', "whole"),
    ({"tools": TOOLS, "tool_choice": "required"}, False, NOW, "whole"),
    ({"tools": TOOLS, "tool_choice": "required"}, False, WEATHER, "whole"),
    ({"tools": TOOLS, "tool_choice": "required"}, False, f"{NOW}\n{WEATHER}{NOW}", "whole"),
    ({"tools": TOOLS, "tool_choice": "required"}, False, "Well", None),
    ({"tools": TOOLS, "tool_choice": "required"}, True, f"Well.\n</think>\n\n{NOW}", "whole"),
    ({"tools": TOOLS, "tool_choice": "required"}, True, "Well.", "begun"),
    (
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        False,
        NOW + NOW,
        None,
    ),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now"}}},
        False,
        NOW,
        "whole",
    ),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "now"}}},
        False,
        WEATHER,
        None,
    ),
    # Order and presence of arguments, choices, types by reference, keywords that are passed over.
    *(
        ({"tools": TOOLS, "tool_choice": "required"}, False, weather(**values), found)
        for values, found in (
            ({"city": "", "day": "1"}, "whole"),
            ({"city": "x", "unit": "F", "day": "2", "place": '{"y": 1}'}, "whole"),
            ({"city": "x", "unit": "K", "day": "2"}, None),
            ({"city": "x", "day": "32"}, None),
            ({"city": "x"}, None),
            ({"day": "3", "city": "x"}, None),
            ({"city": "x", "day": "3", "place": "4"}, None),
        )
    ),
    # With a form of answers, tools may be called or not.
    ({"tools": TOOLS, "response_format": FORMAT}, False, '{"a": 1}', "whole"),
    ({"tools": TOOLS, "response_format": FORMAT}, False, NOW, "whole"),
    ({"tools": TOOLS, "response_format": FORMAT}, False, "Well", None),
    ({"tools": TOOLS, "tool_choice": "none", "response_format": FORMAT}, False, NOW, None),
    (
        {"tools": TOOLS, "tool_choice": "required", "response_format": FORMAT},
        False,
        '{"a": 1}',
        None,
    ),
]


@pytest.mark.parametrize(
    "schema, value, found",
    [
        ({"type": "string", "enum": 5}, "any", "whole"),
        ({"type": "string", "enum": "ab"}, "any", "whole"),
        ({"type": "string", "enum": [None, 1, "a"]}, "a", "whole"),
        ({"type": "string", "enum": [None, 1, "a"]}, "1", None),
        ({"type": "string", "enum": ["\x7f\n", "\U0001f600"]}, "\x7f\n", "whole"),
        ({"type": "string", "enum": ["\x7f\n", "\U0001f600"]}, "\U0001f600", "whole"),
        ({"type": "integer", "x-guidance": 5}, "1", "whole"),
    ],
)
def test_odd_schemas_of_arguments(model, schema, value, found):
    parameters = {"type": "object", "properties": {"city": schema}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    grammar = grammar_of(model, tools=[tool], tool_choice="required")
    assert model[1](grammar, weather(city=value)) == found


@pytest.mark.parametrize("body, reasons, text, found", CASES)
def test_what_texts_a_grammar_has(model, body, reasons, text, found):
    _, taken = model
    assert taken(grammar_of(model, reasons, **body), text) == found


def test_demanded_calls_parse_to_arguments_of_their_types(model):
    """What the grammar allows is what the parser reads."""
    tools = parse_body(
        {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS}, CHAT_URL
    ).callable_tools
    message = AssistantText(tools, reasons=True, opened=True).message(
        f"So.\n</think>\n\n{weather(city='Rome', unit='C', day='7')}\n{NOW}"
    )
    assert message["content"] is None and message["reasoning_content"] == "So."
    first, second = message["tool_calls"]
    assert json.loads(first["function"]["arguments"]) == {"city": "Rome", "unit": "C", "day": 7}
    assert second["function"] == {"name": "now", "arguments": "{}"}
    assert first["id"] != second["id"] and set(first) == {"id", "type", "function"}


def test_translation_hands_the_grammar_to_every_choice(frontend):
    for url in (CHAT_URL, COMPLETIONS_URL):
        job = job_of(frontend, url, response_format=FORMAT, n=2)
        assert [r.params.grammar for r in job.requests] == [Grammar("json_schema", SCHEMA)] * 2
    job = job_of(frontend, CHAT_URL, tools=TOOLS, tool_choice="required")
    assert job.requests[0].params.grammar.kind == "lark"
    assert job_of(frontend, CHAT_URL, tools=TOOLS).requests[0].params.grammar is None


@pytest.mark.parametrize(
    "body, param, part",
    [
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "x"}},
                }
            },
            "response_format",
            "json_schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"not": {}}},
                }
            },
            "response_format",
            'Unimplemented keys: ["not"]',
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": False},
                }
            },
            "response_format",
            "give a JSON schema",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "parameters": {"properties": {"a": {"type": "array", "items": 3}}},
                        },
                    }
                ],
                "tool_choice": "required",
            },
            "tools",
            "tools is",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused(frontend, body, param, part):
    error = refused(frontend, CHAT_URL, **body)
    assert (error.status, error.param) == (400, param)
    assert part in error.message and len(error.message.splitlines()) == 1
    assert isinstance(error, ApiError)
