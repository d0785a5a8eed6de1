"""`ToolCallParser`: calls of the XML format, their arguments by schema, for any chunks."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.openai.argument_types import ANY, ArgumentTypes, to_json
from coachwhip.openai.tool_calls import Arguments, CallBegins, Content, ToolCallParser
from coachwhip.openai.tools import Tool

SCHEMA = {
    "type": "object",
    "$defs": {"place": {"type": "object"}},
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "scale": {"type": "number"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"$ref": "#/$defs/place"},
        "note": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "unit": {"enum": ["C", "F"]},
        "any": {},
    },
}
WEATHER = Tool(type="function", function={"name": "weather", "parameters": SCHEMA})
NOW = Tool(type="function", function={"name": "now"})


def call(name: str, **arguments: str) -> str:
    inside = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def parse(chunks: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Returns the content, and name and arguments of each call."""
    parser = ToolCallParser([WEATHER, NOW])
    events = [event for chunk in chunks for event in parser.feed(chunk)] + parser.finish()
    content, names, arguments = "", [], {}
    for event in events:
        if isinstance(event, Content):
            content += event.text
        elif isinstance(event, CallBegins):
            assert event.index == len(names)
            names.append(event.name)
            arguments[event.index] = ""
        else:
            assert isinstance(event, Arguments) and event.text
            arguments[event.index] += event.text
    assert parser.count == len(names)
    return content, list(zip(names, arguments.values(), strict=True))


def arguments_of(text: str) -> dict:
    content, [(_, arguments)] = parse([text])
    assert content == ""
    return json.loads(arguments)


def test_a_call_with_arguments_of_every_type():
    found = arguments_of(
        call(
            "weather",
            city='New\n"York"',
            days="3",
            scale="1.5",
            exact="True",
            tags='["a", "é"]',
            where='{"x": [1, {"y": null}]}',
            note="null",
            either="7",
            unit="C",
            any="[1]",
            other="4",
        )
    )
    assert found == {
        "city": 'New\n"York"',
        "days": 3,
        "scale": 1.5,
        "exact": True,
        "tags": ["a", "é"],
        "where": {"x": [1, {"y": None}]},
        "note": None,
        "either": 7,
        "unit": "C",
        "any": [1],
        "other": 4,
    }


@pytest.mark.parametrize(
    "key, text, value",
    [
        ("city", "3", "3"),
        ("city", "null", "null"),
        ("city", '"quoted"', '"quoted"'),
        ("city", "", ""),
        ("city", " two  ", " two  "),
        ("days", " 5 ", 5),
        ("days", "5.0", 5),
        ("days", "5.5", "5.5"),
        ("days", "five", "five"),
        ("days", "9" * 30, int("9" * 30)),
        ("scale", "5", 5),
        ("scale", "NaN", "NaN"),
        ("scale", "1e999", "1e999"),
        ("exact", "false", False),
        ("exact", "yes", "yes"),
        ("tags", "[1,", "[1,"),
        ("tags", "[" * 100_000, "[" * 100_000),
        ("note", "None", None),
        ("note", "true", "true"),
        ("note", '"a"', '"a"'),
        ("either", "x", "x"),
        ("unit", "7", "7"),
        ("any", "text", "text"),
        ("any", '["\\ud83d"]', '["\\ud83d"]'),  # half a pair cannot be sent
        ("tags", '["\\ud83d\\ude00"]', ["\U0001f600"]),
        ("any", '"text"', "text"),
    ],
)
def test_values_become_what_the_schema_says(key, text, value):
    found = arguments_of(call("weather", **{key: text}))
    assert found == {key: value} and type(found[key]) is type(value)


def test_half_a_surrogate_pair_makes_a_text_of_a_value():
    """A conversation that holds it could not be sent again."""
    text = to_json('["\\ud83d", "é"]', frozenset({"array"}))
    assert text.encode() and json.loads(text) == '["\\ud83d", "é"]'
    assert to_json('["\\ud83d\\ude42"]', frozenset({"array"})) == '["🙂"]'


@pytest.mark.parametrize(
    "text, content, calls",
    [
        (call("now"), "", [("now", "{}")]),
        ("Let me see.\n\n" + call("now") + "\n", "Let me see.", [("now", "{}")]),
        (call("now") + "\n" + call("now"), "", [("now", "{}")] * 2),
        (call("now") + "\nDone. ", "Done. ", [("now", "{}")]),
        ("a " + call("now") + " b " + call("now") + " c", "abc", [("now", "{}")] * 2),
        ("<tool_call><function=now></function></tool_call>", "", [("now", "{}")]),
        ("<tool_call>\n<function=other.fn-1>\n</function>", "", [("other.fn-1", "{}")]),
        ("<tool_call><function=now></tool_call>x", "x", [("now", "{}")]),
        (
            "<tool_call><function=weather><parameter=city>a</parameter>"
            "<parameter=city>b</parameter></function></tool_call>",
            "",
            [("weather", '{"city": "a", "city": "b"}')],
        ),
        # No calls: the text stays as it is.
        ("no call </tool_call> <function=now>", "no call </tool_call> <function=now>", []),
        (
            '<tool_call>\n{"name": "now"}\n</tool_call>',
            '<tool_call>\n{"name": "now"}\n</tool_call>',
            [],
        ),
        ("a\n<tool_call>\n<function=bad name>", "a\n<tool_call>\n<function=bad name>", []),
        ("<tool_call><function=>", "<tool_call><function=>", []),
        ("<tool_call><tool_call><function=now></function>", "<tool_call>", [("now", "{}")]),
        ("ends with blanks \n", "ends with blanks \n", []),
        ("a <tool_ca", "a <tool_ca", []),
        ("a <tool_call> <func", "a <tool_call> <func", []),
        ("", "", []),
        # A call that becomes something else ends there.
        (
            "<tool_call><function=weather><parameter=days>4</parameter> and more",
            "and more",
            [("weather", '{"days": 4}')],
        ),
        # One whose arguments are complete stays so, wherever the closing mark breaks off.
        ("<tool_call><function=now></function>\n</tool", "", [("now", "{}")]),
        # One that breaks off is not completed.
        ("<tool_call><function=now>", "", [("now", "")]),
        (
            "<tool_call><function=weather><parameter=city>\nrm -r",
            "",
            [("weather", '{"city": "rm -r')],
        ),
        ("<tool_call><function=weather><parameter=days>\n12", "", [("weather", '{"days": "12')]),
    ],
)
def test_texts_with_calls_and_without(text, content, calls):
    assert parse([text]) == (content, calls)
    assert parse(list(text)) == (content, calls)


MARKS = (
    *("<tool_call>", "</tool_call>", "<function=now>", "<function=weather>", "</function>"),
    *("<parameter=city>", "<parameter=days>", "<parameter=tags>", "</parameter>", "<parameter="),
    *("\n", "\r\n", " ", "a", "5", "[1]", '"', "\\", "é", "<", ">", "</", "<function="),
)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(MARKS), max_size=25), st.data())
def test_chunks_do_not_matter(pieces, data):
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse([text])
    assert parse(chunks) == whole == parse(list(text))
    if "<function=" not in text:
        assert whole == (text, [])


VALUES = st.text(st.sampled_from("ab\n\r\t \"\\<>/é{}[]=,:'1"), max_size=20)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(["city", "note", "x"]), VALUES), max_size=4),
    st.integers(1, 9),
)
def test_every_value_arrives(pairs, size):
    """Strings as they are; whatever is no JSON of another type too."""
    pairs = [(key, value) for key, value in pairs if "</parameter" not in value]
    text = "Now. " + call("weather") + " then " + call("weather", **dict(pairs))
    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    content, [(_, first), (_, second)] = parse(chunks)
    assert content == "Now.then" and first == "{}"
    types = ArgumentTypes(SCHEMA)
    for key, value in dict(pairs).items():
        found = json.loads(second)[key]
        assert found == (value if key == "city" else json.loads(to_json(value, types.of(key))))


def test_strings_stream_and_other_values_wait_for_their_end():
    parser = ToolCallParser([WEATHER])
    assert parser.feed("<tool_call>\n<function=weather>") == [CallBegins(0, "weather")]
    assert parser.feed("\n<parameter=city>\nNew") == [
        *(Arguments(0, '{"city": '), Arguments(0, '"'), Arguments(0, "New"))
    ]
    assert parser.feed(" Yo\n") == [Arguments(0, " Yo")]
    assert parser.feed("rk</par") == [Arguments(0, "\\nrk")]
    assert parser.feed("ameter>\n<parameter=days>\n1") == [
        *(Arguments(0, '"'), Arguments(0, ', "days": '))
    ]
    assert parser.feed("2\n</parameter>\n</function>") == [Arguments(0, "12"), Arguments(0, "}")]
    assert parser.feed("\n</tool_call>") == [] == parser.finish()


def test_long_values_take_linear_time_and_little_is_held():
    parser, size = ToolCallParser([WEATHER]), 200_000
    parser.feed("<tool_call><function=weather><parameter=city>")
    got = sum(len(e.text) for _ in range(size) for e in parser.feed("x"))
    assert got == size and len(parser._text) < 20


@pytest.mark.parametrize(
    "schema, types",
    [
        (None, ANY),
        ({}, ANY),
        ({"properties": 3}, ANY),
        ({"properties": {"a": {"type": "string"}}}, {"string"}),
        ({"properties": {"a": {"type": ["integer", "null"]}}}, {"integer", "null"}),
        ({"properties": {"a": {"type": []}}}, ANY),
        ({"properties": {"a": {"enum": [1, "b", None]}}}, {"integer", "string", "null"}),
        ({"properties": {"a": {"const": 1.5}}}, {"number"}),
        (
            {"properties": {"a": {"anyOf": [{"type": "array"}, {"type": "null"}]}}},
            {"array", "null"},
        ),
        ({"properties": {"a": {"oneOf": [{"type": "array"}, {}]}}}, ANY),
        (
            {"properties": {"a": {"allOf": [{"type": ["string", "null"]}, {"enum": ["b"]}]}}},
            {"string"},
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": {"type": "object"}}},
            {"object"},
        ),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, ANY),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, ANY),
        ({"properties": {"a": True}}, ANY),
    ],
)
def test_types_of_a_schema(schema, types):
    assert ArgumentTypes(schema).of("a") == types
