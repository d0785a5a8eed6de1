"""Text to token ids and back, with the tokenizer that lies beside the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as HFTokenizer

from .errors import CheckpointError

_REPLACEMENT = "\ufffd"
_CONTEXT_TOKENS = 6
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens that part a chat model's text. They belong to the text, whatever `tokenizer.json` says."""


class Tokenizer:
    """The `tokenizer.json` of a checkpoint.

    Special tokens have no text, but for `MARKS`.

    Raises:
        CheckpointError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = _with_marks_as_text(HFTokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(
                path, f"cannot be read as a tokenizer: {error}", "restore the file"
            ) from error

    @classmethod
    def beside(cls, folder: Path) -> Tokenizer | None:
        """Returns the tokenizer of a checkpoint folder, or None where it has none."""
        path = folder / "tokenizer.json"
        return cls(path) if path.is_file() else None

    def to_json(self) -> str:
        """Returns the contents of a `tokenizer.json` that is this tokenizer."""
        return self._tokenizer.to_str()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a text.

        Args:
            text: The text; special tokens spelled out in it become those tokens.
            add_special_tokens: Add those that a prompt begins or ends with, such as BOS. Off for
                the text of a chat template, which spells them out.
        """
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_words(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """Returns the token ids of words as they are spelled inside a text and at its beginning."""
        found = {}
        for word in words:
            for spelling in (word, f" {word.lstrip()}"):
                ids = tuple(self.encode(spelling, add_special_tokens=False))
                if ids:
                    found[ids] = None
        return list(found)

    def vocabulary(self) -> dict[str, int]:
        """Returns every token and its id."""
        return self._tokenizer.get_vocab()

    def spelling(self, token: int) -> str | None:
        """Returns a token as the vocabulary spells it; None for an id that it does not have."""
        return self._tokenizer.id_to_token(token)

    def added_token(self, text: str) -> int | None:
        """Returns the id of the added token that is this text; None if there is none."""
        added = self._tokenizer.get_added_tokens_decoder()
        return next((token for token, entry in added.items() if entry.content == text), None)

    def special_ids(self) -> frozenset[int]:
        """Returns the ids of tokens that have no text."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, entry in added.items() if entry.special)

    @property
    def is_byte_level(self) -> bool:
        """Whether the vocabulary spells bytes, each as one of 256 characters."""
        decoder = self._tokenizer.decoder
        found = [] if decoder is None else [json.loads(decoder.__getstate__())]
        while found:
            one = found.pop()
            if one["type"] == "ByteLevel":
                return True
            found += one.get("decoders", ())
        return False

    def decode(self, ids: list[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def _with_marks_as_text(tokenizer: HFTokenizer) -> HFTokenizer:
    added = tokenizer.get_added_tokens_decoder().values()
    if not any(entry.special and entry.content in MARKS for entry in added):
        return tokenizer
    contents = json.loads(tokenizer.to_str())
    for entry in contents["added_tokens"]:
        entry["special"] = entry["special"] and entry["content"] not in MARKS
    return HFTokenizer.from_str(json.dumps(contents))


class IncrementalText:
    """The text of a growing list of tokens.

    A token may end inside a character, or change how earlier ones are joined, so text is settled
    only up to the last token boundary where the decoded text is complete.

    Args:
        tokenizer: The tokenizer.
        prompt: Tokens before the first one; their last few decide how it is joined (whether a
            space begins it).
    """

    def __init__(self, tokenizer: Tokenizer, prompt: list[int] | None = None) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = list(prompt or ())[-_CONTEXT_TOKENS:]
        self._context = 0  # first token of the window that is decoded again
        self._settled = len(self._ids)  # tokens whose text is final
        self.text = ""

    def append(self, token: int) -> str:
        """Adds a token and returns the text that became final with it, maybe none."""
        self._ids.append(token)
        before = self._tokenizer.decode(self._ids[self._context : self._settled])
        after = self._tokenizer.decode(self._ids[self._context :])
        if after == before:  # special tokens have no text, and would make the window grow
            del self._ids[self._settled :]
            return ""
        if after.endswith(_REPLACEMENT) or len(after) <= len(before):
            return ""
        new = after[len(before) :]
        self._context, self._settled = self._settled, len(self._ids)
        self.text += new
        return new

    def finish(self) -> str:
        """Returns the text that was still held back, broken characters included."""
        before = self._tokenizer.decode(self._ids[self._context : self._settled])
        new = self._tokenizer.decode(self._ids[self._context :])[len(before) :]
        self._context = self._settled = len(self._ids)
        self.text += new
        return new
