"""The text of single tokens, byte by byte."""

from __future__ import annotations

import re

from ..tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_BEGIN = "\u2581"


def _byte_alphabet() -> dict[str, int]:
    """Returns the characters in which byte-level tokenizers spell the 256 bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


_BYTES = _byte_alphabet()


class TokenText:
    """What each token stands for.

    Args:
        tokenizer: The model's tokenizer; without one tokens have no text, and are shown by number.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset() if tokenizer is None else tokenizer.special_ids()
        self._byte_level = tokenizer is not None and tokenizer.is_byte_level
        self._raw: dict[int, bytes] = {}

    def raw(self, token: int) -> bytes:
        """Returns the bytes of a token in UTF-8; they may begin or end inside a character."""
        if token not in self._raw:
            self._raw[token] = self._spell(token)
        return self._raw[token]

    def shown(self, token: int) -> str:
        """Returns a token for a reader: its text or, inside a character, `bytes:\\xe2\\x80`."""
        raw = self.raw(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def in_text(self, token: int) -> bytes:
        """Returns what a token adds to a text: nothing if it is special."""
        return b"" if self._tokenizer is None or token in self._special else self.raw(token)

    def _spell(self, token: int) -> bytes:
        spelled = None if self._tokenizer is None else self._tokenizer.spelling(token)
        if spelled is None:
            return f"token_id:{token}".encode()
        if self._byte_level:
            if all(character in _BYTES for character in spelled):
                return bytes(_BYTES[character] for character in spelled)
            return spelled.encode()
        if found := _BYTE_TOKEN.fullmatch(spelled):
            return bytes([int(found[1], 16)])
        return spelled.replace(_WORD_BEGIN, " ").encode()
