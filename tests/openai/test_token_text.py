"""Bytes of single tokens: joined, they are the text."""

import json
from pathlib import Path

import pytest

from coachwhip.locate import small_model_dir
from coachwhip.openai.token_text import TokenText
from coachwhip.tokenizer import Tokenizer

TEXTS = ["The state of the Union", "naïve — “quotes” \U0001f40d\n\tx", "日本"]


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_join_to_the_text(text):
    tokenizer = Tokenizer.beside(small_model_dir())
    found = TokenText(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(found.raw, ids)).decode() == text
    assert b"".join(map(found.in_text, ids)).decode() == text


def test_special_tokens_are_shown_and_have_no_text():
    found = TokenText(Tokenizer.beside(small_model_dir()))
    assert found.shown(2) == "</s>" and found.in_text(2) == b""
    assert found.shown(10**6) == "token_id:1000000"


def test_a_part_of_a_character_is_shown_as_bytes():
    tokenizer = Tokenizer.beside(small_model_dir())
    found = TokenText(tokenizer)
    ids = tokenizer.encode("\U0001f40d", add_special_tokens=False)
    assert len(ids) > 1 and found.shown(ids[0]).startswith("bytes:\\xf0")


def test_tokens_that_spell_bytes_by_number(tmp_path: Path):
    vocab = {"<unk>": 0, "\u2581We": 1, "<0xE2>": 2, "<0x82>": 3, "<0xAC>": 4}
    model = {
        "type": "BPE",
        "vocab": vocab,
        "merges": [],
        "byte_fallback": True,
        "unk_token": "<unk>",
    }
    decoders = [{"type": "ByteFallback"}, {"type": "Fuse"}]
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": model, "decoder": {"type": "Sequence", "decoders": decoders}})
    )
    found = TokenText(Tokenizer.beside(tmp_path))
    assert found.raw(1) == b" We"
    assert b"".join(map(found.raw, (2, 3, 4))).decode() == "€"


def test_without_a_tokenizer_tokens_are_numbers():
    found = TokenText(None)
    assert found.shown(7) == "token_id:7" and found.in_text(7) == b""
