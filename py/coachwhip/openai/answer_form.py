"""Which texts a body allows, as a grammar: `response_format` and the demands of `tool_choice`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from ..sampling.grammar import Grammar
from ..sampling.guidance import JSON_LAYOUT
from ..sampling.schema_limits import check_schema
from .argument_types import STRING, ArgumentTypes
from .bodies import ChatBody, CompletionBody
from .reasoning import CLOSE
from .response_format import ResponseFormat
from .tool_calls import CALL, END_CALL, END_FUNCTION, END_PARAMETER, FUNCTION, PARAMETER
from .tools import NamedTool, Tool

Spell = Callable[[str], int | None]
"""Returns the id of the token that a mark is, None where it is written in several."""


def answer_grammar(
    body: CompletionBody | ChatBody, reasons: bool = False, token_of: Spell = lambda mark: None
) -> Grammar | None:
    """Returns the grammar that a body's texts follow; None: they are free.

    A text that begins inside the model's reasoning may reason first, as long as it likes: the form
    is that of the answer. With tools that may be called and a `response_format`, a text is either
    calls or an answer of that form.

    Args:
        body: The body.
        reasons: Whether the prompt opened the reasoning.
        token_of: The model's single tokens.

    Raises:
        RequestError: A schema is no JSON, or too long.
    """
    answer = _form(body.response_format)
    chat = isinstance(body, ChatBody)
    demanded = chat and body.tool_choice not in (None, "none", "auto")
    if not demanded and answer is None:
        return None
    tools = body.callable_tools if chat else []
    if isinstance(demanded and body.tool_choice, NamedTool):
        tools = [t for t in tools if t.function.name == body.tool_choice.function.name]
    if not (reasons or tools):
        return answer
    lark = _Lark(token_of)
    parts = []
    if tools:
        parts.append(lark.calls(tools, chat and body.parallel_tool_calls is not False))
    if answer is not None and not demanded:
        parts.append(
            lark.json(answer.value if answer.kind == "json_schema" else '{"type": "object"}')
        )
    lark.rules["answer"] = " | ".join(parts)
    return Grammar("lark", lark.text(reasons))


def _form(wanted: ResponseFormat | None) -> Grammar | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Grammar("json_object")
    schema = wanted.json_schema.schema_
    return Grammar("json_schema", True if schema is None else schema)


class _Lark:
    """Rules of a grammar in llguidance's Lark, by name."""

    def __init__(self, token_of: Spell) -> None:
        self._token_of = token_of
        self.rules: dict[str, str] = {}

    def text(self, reasons: bool) -> str:
        """Returns the grammar, whose texts are those of the rule `answer`."""
        start = "answer"
        if reasons:
            token = self._token_of(CLOSE)
            start = "thought /[\\r\\n]{0,4}/ answer"
            if token is None:
                self.rules[f"thought[suffix={json.dumps(CLOSE)}]"] = "/(?s:.*)/"
            else:
                # The token ends it; the same characters in several tokens do not pass for it.
                self.rules["thought"] = f"THOUGHT <[{token}]>"
                spelled = CLOSE.replace("/", "\\/")
                self.rules["THOUGHT"] = f"/(?s:.*)/ & ~/(?s:.*{spelled}.*)/"
        return "\n".join(f"{n}: {rule}" for n, rule in {"start": start, **self.rules}.items())

    def mark(self, text: str) -> str:
        """Returns a mark: the model's token for it, or its characters."""
        token = self._token_of(text)
        return json.dumps(text) if token is None else f"<[{token}]>"

    def json(self, schema: str, **more: object) -> str:
        """Returns a rule's right side for JSON of a schema."""
        wanted = json.loads(schema)
        check_schema(wanted)
        own = wanted.get("x-guidance")
        layout = {**JSON_LAYOUT, **more, **(own if isinstance(own, Mapping) else {})}
        return f"%json {json.dumps({**wanted, 'x-guidance': layout}, ensure_ascii=False)}"

    def calls(self, tools: Sequence[Tool], several: bool) -> str:
        """Returns a rule's right side for one call of the tools, or several."""
        names = []
        for i, tool in enumerate(tools):
            names.append(f"tool{i}")
            self.rules[names[-1]] = self._function(tool, names[-1])
        begin, end = f'{self.mark(CALL)} "\\n"', f'"\\n" {self.mark(END_CALL)}'
        self.rules["call"] = f"{begin} ({' | '.join(names)}) {end}"
        return "call (/\\n{0,2}/ call)*" if several else "call"

    def _function(self, tool: Tool, name: str) -> str:
        schema = tool.function.parameters or {}
        types, parts = ArgumentTypes(schema), []
        properties = schema.get("properties")
        required = schema.get("required")
        for i, (key, value) in enumerate(
            properties.items() if isinstance(properties, Mapping) else ()
        ):
            rule = f"{name}_{i}"
            self.rules[rule] = self._parameter(schema, key, value, types.of(key), rule)
            needed = isinstance(required, list) and key in required
            parts.append(rule if needed else f"{rule}?")
        opening = json.dumps(f"{FUNCTION}{tool.function.name}>\n")
        return " ".join((opening, *parts, json.dumps(END_FUNCTION)))

    def _parameter(
        self, root: Mapping, key: str, schema: object, types: frozenset[str], rule: str
    ) -> str:
        opening = json.dumps(f"{PARAMETER}{key}>\n")
        closing = json.dumps(f"\n{END_PARAMETER}\n")
        choices = schema.get("enum") if isinstance(schema, Mapping) else None
        listed = choices if isinstance(choices, list) else []
        texts = [json.dumps(text) for text in listed if isinstance(text, str)]
        if types == STRING and texts:
            return f"{opening} ({' | '.join(texts)}) {closing}"
        if not types or "string" in types:
            # Written as it is, without quotes: any text up to the first end.
            self.rules[f"{rule}_text[suffix={closing}]"] = "/(?s:.*)/"
            return f"{opening} {rule}_text"
        shared = {k: root[k] for k in ("$defs", "definitions") if k in root}
        value = json.dumps({**shared, **schema}, ensure_ascii=False)
        self.rules[f"{rule}_value"] = self.json(value, lenient=True)
        return f"{opening} {rule}_value {closing}"
