"""`Grammar` and `Guidance`: what a request may ask for, and what is refused with its reason."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from coachwhip import Grammar, RequestError, SamplingParams
from coachwhip.sampling.grammar import KINDS, LONGEST_GRAMMAR
from coachwhip.sampling.guidance import MOST_COMPILED, Guidance
from coachwhip.tokenizer import Tokenizer
from tests.reference.byte_tokenizer import byte_tokenizer, save_byte_tokenizer

VOCAB = 512
END = 2


@pytest.fixture(scope="module")
def guidance(tmp_path_factory) -> Guidance:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_byte_tokenizer(folder)
    return Guidance(Tokenizer.beside(folder), VOCAB, [END])


def deep(levels: int) -> dict:
    schema: dict = {}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "kind, values",
    [
        ("json_object", [None]),
        ("json_schema", [{"type": "object"}, '{"type": "object"}', "true", True, {}]),
        ("regex", ["a+", "(?i)x|y"]),
        ("lark", ['start: "a"']),
        ("choice", [["a"], ("yes", "no"), ['"', "\n", "é", "\\"]]),
    ],
)
def test_every_kind_takes_its_values(guidance, kind, values):
    for value in values:
        guidance.check(SamplingParams(grammar=Grammar(kind, value)).grammar)


@pytest.mark.parametrize(
    "kind, values",
    [
        ("json_object", ["{}", {}]),
        ("json_schema", [None, 3, "3", "{", False, ["a"], {"a": float("nan")}, {"a": {1, 2}}]),
        ("regex", [None, "", 3, ["a"]]),
        ("lark", [None, "", {"start": "a"}]),
        ("choice", [None, [], "abc", [""], ["a", 3], {"a": "b"}]),
    ],
)
def test_values_of_the_wrong_type_are_refused(kind, values):
    for value in values:
        with pytest.raises(RequestError, match=r"^grammar\.value is ") as caught:
            Grammar(kind, value)
        assert len(str(caught.value).splitlines()) == 1


def test_unknown_kinds_are_refused_with_those_there_are():
    with pytest.raises(RequestError, match=r'^grammar\.kind is "xml": give one of json_object, '):
        Grammar("xml", "a")


def test_a_request_takes_a_grammar_and_nothing_else():
    for value in ("json_object", {"kind": "json_object"}, 3):
        with pytest.raises(RequestError, match=r"^grammar is .*: give a Grammar$"):
            SamplingParams(grammar=value)


@pytest.mark.parametrize(
    "kind, value, reason",
    [
        ("json_schema", {"type": "nope"}, "nope"),
        ("json_schema", {"not": {}}, "not"),
        ("json_schema", {"$ref": "http://localhost/a.json"}, "not present in a registry"),
        ("json_schema", {"type": "string", "pattern": "("}, "unclosed group"),
        ("regex", "([", "unclosed character class"),
        ("regex", "(" * 5000 + ")" * 5000, "nest"),
        ("lark", "start: foo", "unknown name"),
        ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "deeply nested"),
    ],
)
def test_what_llguidance_refuses_is_refused_with_its_reason(guidance, kind, value, reason):
    for _ in range(2):  # what failed is not taken for compiled
        with pytest.raises(RequestError, match=reason) as caught:
            guidance.check(Grammar(kind, value))
        message = str(caught.value)
        assert message.startswith("grammar is ") and len(message.splitlines()) == 1
        assert f"no {kind} that can be used: " in message


@pytest.mark.parametrize("levels", [200, 100_000])
def test_schemas_without_end_are_refused(guidance, levels):
    """As mappings and as JSON: the library behind would overflow its stack."""
    text = '{"items":' * min(levels, 10_000) + "{}" + "}" * min(levels, 10_000)
    for value in (deep(levels), text):
        with pytest.raises(RequestError, match=r"nested too deeply|recursion limit"):
            guidance.check(Grammar("json_schema", value))


def doubling(levels: int) -> dict:
    """A schema whose references unfold to twice as many at each level."""
    found = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": {**found, f"a{levels}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def chain(levels: int) -> dict:
    """Patterns that meet by references."""
    found = {f"a{i}": {"pattern": f"a{i}", "$ref": f"#/$defs/a{i + 1}"} for i in range(levels - 1)}
    return {"$defs": {**found, f"a{levels - 1}": {"pattern": "b"}}, "$ref": "#/$defs/a0"}


ENDLESS = {
    "patterns of allOf": {"allOf": [{"type": "string", "pattern": f"a{i}"} for i in range(32)]},
    "patterns by reference": chain(32),
    "alternatives of alternatives": {"allOf": [{"anyOf": [{"minimum": i} for i in range(9)]}] * 9},
    "references that double": doubling(40),
    "remainders": {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]},
    "many properties": {"properties": {f"p{i}": {} for i in range(4000)}},
    "deep inside": {"properties": {"a": {"items": {"allOf": [{"format": "date"}] * 7}}}},
}


@pytest.mark.parametrize("schema", ENDLESS.values(), ids=ENDLESS.keys())
def test_schemas_that_would_compile_forever_are_refused(schema):
    with pytest.raises(
        RequestError, match=r"^grammar\.value is .*: too many .*; give at most \d+$"
    ):
        Grammar("json_schema", schema)


def test_large_multiples_are_refused(guidance):
    for step in (10_007, 999_983, 1.23456789, 10**30 + 1):
        with pytest.raises(RequestError, match=r"^grammar\.value\.multipleOf is .*give at most"):
            Grammar("json_schema", {"items": {"multipleOf": step}})
    for step in (1, 0.01, 9973, 1e9, 0, -1, "a"):
        Grammar("json_schema", {"type": "number", "multipleOf": step})
    guidance.check(Grammar("json_schema", {"type": "integer", "multipleOf": 9973}))


def test_schemas_of_usual_sizes_are_not(guidance):
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    for schema in (
        {"$defs": {"node": node}, "$ref": "#/$defs/node"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        doubling(6),
        {"properties": {f"p{i}": {"type": "string", "pattern": f"^a{i}$"} for i in range(100)}},
        {"anyOf": [{"type": "object", "properties": {f"p{i}": {}}} for i in range(100)]},
        {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "b$"}]},
    ):
        guidance.check(Grammar("json_schema", schema))


def test_grammars_have_a_longest():
    for kind, value in (
        ("regex", "a" * (LONGEST_GRAMMAR + 1)),
        ("lark", "a" * (LONGEST_GRAMMAR + 1)),
        ("json_schema", {"enum": ["a" * LONGEST_GRAMMAR]}),
        ("choice", ["a" * (LONGEST_GRAMMAR // 2 + 1), "b" * (LONGEST_GRAMMAR // 2 + 1)]),
    ):
        with pytest.raises(RequestError, match=f"give at most {LONGEST_GRAMMAR}"):
            Grammar(kind, value)


def test_equal_grammars_are_one():
    """A schema is the same as a mapping and as a string; the order of its properties counts."""
    first = Grammar("json_schema", {"type": "object", "a": [1]})
    assert first == Grammar("json_schema", '{ "type":"object","a":[1]}')
    assert len({first, Grammar("json_schema", {"type": "object", "a": [1]})}) == 1
    assert first != Grammar("json_schema", {"a": [1], "type": "object"})
    assert Grammar("choice", ["a", "b", "a"]) == Grammar("choice", ("a", "b"))
    assert set(KINDS) == {"json_object", "json_schema", "regex", "lark", "choice"}


def test_compiled_grammars_are_few(guidance):
    """A guide of a grammar that was pushed out goes on; the grammar compiles again."""
    first = guidance.guide(Grammar("choice", ["first"]))
    for i in range(MOST_COMPILED + 5):
        guidance.check(Grammar("choice", [f"c{i}"]))
    assert len(guidance._compiled) == MOST_COMPILED
    again = guidance.guide(Grammar("choice", ["first"]))
    assert first.mask().tolist() == again.mask().tolist()


def test_compiled_grammars_are_few_where_they_are_long(guidance, monkeypatch):
    monkeypatch.setattr("coachwhip.sampling.guidance.MOST_CHARACTERS", 100)
    for size in (40, 41, 42, 99):
        guidance.check(Grammar("choice", ["a" * size]))
        sizes = [grammar.size for grammar in guidance._compiled]
        assert sizes[-1] == size and sum(sizes) <= 100
    assert sizes == [99]


def test_threads_may_ask_at_once(guidance):
    """Of more grammars than are kept, so that some are pushed out meanwhile."""

    def ask(i: int) -> bool:
        guide = guidance.guide(Grammar("choice", [f"t{i * 7 % (2 * MOST_COMPILED)}"]))
        return guide.mask().any() and not guide.ended

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(1000)))
    assert len(guidance._compiled) == MOST_COMPILED


def test_a_model_without_a_tokenizer_refuses_grammars():
    with pytest.raises(RequestError, match=r"no tokenizer\.json"):
        Guidance(None, VOCAB, [END]).check(Grammar("json_object"))


def test_a_tokenizer_without_bytes_is_refused(tmp_path):
    from tokenizers import Tokenizer as HFTokenizer
    from tokenizers.models import WordLevel

    HFTokenizer(WordLevel({"a": 0, "b": 1}, "a")).save(str(tmp_path / "tokenizer.json"))
    one = Guidance(Tokenizer.beside(tmp_path), VOCAB, [])
    with pytest.raises(RequestError, match="tokenizer cannot be used for grammars"):
        one.check(Grammar("json_object"))


def test_the_test_tokenizer_is_a_byte_level_one():
    tokenizer = byte_tokenizer()
    text = json.dumps({"a": True, "é\n": [12, None, "the"]}, ensure_ascii=False)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<think>").ids == [4]
    assert 256 + 8 < tokenizer.get_vocab_size() < VOCAB
