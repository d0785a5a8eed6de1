"""Compiles grammars for a model's tokens, with llguidance."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

from ..errors import RequestError
from ..tokenizer import Tokenizer
from .grammar import LONGEST_GRAMMAR, Grammar
from .guide import Guide

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MOST_COMPILED = 64
"""Grammars that stay compiled."""
MOST_CHARACTERS = 4 * LONGEST_GRAMMAR
"""Most characters of these together: one of a schema may take 300 bytes compiled."""
JSON_LAYOUT = {"whitespace_pattern": r"(\x20|\r?\n[\x20\x09]{0,64})"}
"""Between two JSON tokens: a space, or a new line and its indentation; never blank without end."""


class Guidance:
    """The grammars of a model's requests.

    The tokenizer is converted when the first grammar comes, which takes about a second for 130,000
    tokens. Any thread may ask; the interpreter's lock is free while a grammar compiles.

    Args:
        tokenizer: The model's; None without one.
        vocab: The model's vocabulary size; tokens that the tokenizer does not have are never
            allowed, nor can tokens be chosen that the model does not have.
        eos_token_ids: The model's end tokens.
        limits: What a grammar may take to compile, and a token of it; None takes llguidance's own,
            with which no step of a request takes much more than 20 ms.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        vocab: int,
        eos_token_ids: Sequence[int],
        limits: LLParserLimits | None = None,
    ) -> None:
        self._limits = limits
        self._source, self._vocab = tokenizer, vocab
        self._eos = [token for token in eos_token_ids if token < vocab]
        self._converted: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = Lock()

    def check(self, grammar: Grammar) -> None:
        """Raises RequestError unless the model can be made to follow a grammar."""
        self._matcher(grammar)

    def guide(
        self, grammar: Grammar, *, ignore_eos: bool = False, stop_token_ids: Sequence[int] = ()
    ) -> Guide:
        """Returns a guide at the beginning of a grammar's texts.

        Args:
            grammar: The grammar.
            ignore_eos: The model's end tokens do not end the text, so they are never allowed.
            stop_token_ids: More tokens that end the text. Those without a text of their own are
                allowed wherever it may end; the others only where the grammar has them.

        Raises:
            RequestError: As `check`.
        """
        compiled = self._matcher(grammar)

        def renew() -> LLMatcher:
            """Copies share the states of their lexer, which one day are too many."""
            nonlocal compiled
            with self._lock:
                if self._compiled.get(grammar) is compiled:
                    del self._compiled[grammar]
            compiled = self._matcher(grammar)
            return compiled.deep_copy()

        known, special = self._converted.vocab_size, self._source.special_ids()
        ends = {token for token in stop_token_ids if token in special}
        eos = set(self._eos)
        return Guide(
            compiled.deep_copy(),
            self._vocab,
            known,
            ends if ignore_eos else ends | eos,
            eos - ends if ignore_eos else (),
            renew,
        )

    def _matcher(self, grammar: Grammar) -> LLMatcher:
        """Returns the compiled grammar, in its first state."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found
        found = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = found
            while (
                len(self._compiled) > MOST_COMPILED
                or sum(one.size for one in self._compiled) > MOST_CHARACTERS
            ):
                self._compiled.popitem(last=False)
        return found

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher

        tokenizer = self._tokenizer(grammar)
        try:
            matcher = LLMatcher(tokenizer, _source(grammar), log_level=0, limits=self._limits)
        except ValueError as error:
            raise _refused(grammar, str(error)) from None
        if matcher.is_error():
            raise _refused(grammar, matcher.get_error())
        return matcher

    def _tokenizer(self, grammar: Grammar) -> LLTokenizer:
        if self._source is None:
            raise RequestError("grammar", grammar.kind, "the model has no tokenizer.json")
        if self._converted is None:
            from llguidance import LLTokenizer

            # Ids beyond the tokenizer's own have no text, so no grammar allows them.
            size = max(self._vocab, 1 + max(self._source.vocabulary().values(), default=0))
            try:
                self._converted = LLTokenizer(
                    self._source.to_json(), n_vocab=size, eos_token=self._eos or None
                )
            except ValueError as error:
                raise RequestError(
                    "grammar",
                    grammar.kind,
                    f"the model's tokenizer cannot be used for grammars: {error}",
                ) from None
        return self._converted


def _source(grammar: Grammar) -> str:
    """Returns a grammar as llguidance takes it.

    Raises:
        ValueError: It is not JSON, or nested too deeply.
    """
    from llguidance import LLMatcher

    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.value)
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.value)
    if grammar.kind == "choice":
        return LLMatcher.grammar_from_lark(f"start: {' | '.join(map(json.dumps, grammar.value))}")
    # Only ever as a string: a deep mapping would overflow the library's stack.
    schema = '{"type": "object"}' if grammar.kind == "json_object" else grammar.value
    return LLMatcher.grammar_from_json_schema(schema, defaults=JSON_LAYOUT)


def _refused(grammar: Grammar, reason: str) -> RequestError:
    reason = " ".join(reason.split())
    return RequestError("grammar", grammar.value, f"no {grammar.kind} that can be used: {reason}")
