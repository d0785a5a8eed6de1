"""Text that grows token by token equals the text decoded at once, whatever the tokens."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.locate import small_model_dir
from coachwhip.sampling.params import SamplingParams
from coachwhip.stopping import StopChecker
from coachwhip.tokenizer import MARKS, IncrementalText, Tokenizer
from tests.reference.byte_tokenizer import SPECIAL, byte_tokenizer

TOKENIZER = Tokenizer.beside(small_model_dir())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=60))
def test_any_text_comes_out_as_it_went_in(text):
    ids = TOKENIZER.encode(text)
    grown, final = IncrementalText(TOKENIZER), []
    for token in ids:
        final.append(grown.append(token))
    final.append(grown.finish())
    assert grown.text == "".join(final) == TOKENIZER.decode(ids)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(5, 3071), max_size=40))
def test_broken_characters_are_held_back_and_then_shown(ids):
    grown = IncrementalText(TOKENIZER)
    for token in ids:
        grown.append(token)
    grown.finish()
    assert grown.text == TOKENIZER.decode(ids)


def sentencepiece_like() -> Tokenizer:
    """A tokenizer whose words carry their space as a prefix that the first word loses."""
    from tokenizers import Tokenizer as HFTokenizer
    from tokenizers import decoders, models

    words = {
        w: i for i, w in enumerate(["<unk>", "\u2581Hello", "\u2581world", "\u2581again", "s"])
    }
    for byte in range(256):
        words[f"<0x{byte:02X}>"] = len(words)
    made = HFTokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer = Tokenizer.__new__(Tokenizer)
    tokenizer._tokenizer = made
    return tokenizer


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.lists(st.sampled_from([[1], [2], [3], [4], [5 + 0xC3, 5 + 0xA9]]), max_size=8),
)
def test_generated_text_continues_the_prompt(prompt, pieces):
    """Prompt text plus generated text is the text of all tokens, spaces included."""
    tokenizer, ids = sentencepiece_like(), [i for piece in pieces for i in piece]
    grown = IncrementalText(tokenizer, prompt)
    for token in ids:
        grown.append(token)
    grown.finish()
    assert tokenizer.decode(prompt) + grown.text == tokenizer.decode(prompt + ids)


def test_tokens_without_text_cost_nothing():
    grown = IncrementalText(TOKENIZER)
    for token in [2] * 3000 + TOKENIZER.encode("We", add_special_tokens=False):
        grown.append(token)
    assert len(grown._ids) < 10
    assert grown.text + grown.finish() == "We"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(["a", "b", "ab", "ba", "abc"]), max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_a_stop_string_is_found_at_its_first_place(pieces, stops):
    checker = StopChecker(SamplingParams(stop=stops), [], 100)
    text = ""
    for piece in pieces:
        text += piece
        cut, stop = checker.cut(text, 1)
        places = [text.index(s) for s in stops if s in text]
        if places:
            assert stop in stops and cut == text[: min(places)]
            return
        assert (cut, stop) == (text, None)


@pytest.mark.parametrize("special", [True, False])
def test_the_marks_of_chats_are_text(tmp_path, special):
    """Also where `tokenizer.json` calls them special; other special tokens have no text."""
    made = byte_tokenizer()
    contents = json.loads(made.to_str())
    for entry in contents["added_tokens"]:
        entry["special"] = entry["special"] or special
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(contents))
    tokenizer = Tokenizer(path)
    ids = tokenizer.encode("<s>a<think>b</think><tool_call></tool_call><|im_end|>")
    assert tokenizer.decode(ids) == "a<think>b</think><tool_call></tool_call>"
    text = IncrementalText(tokenizer)
    for token in ids:
        text.append(token)
    assert text.text == tokenizer.decode(ids)
    assert tokenizer.special_ids() == {made.token_to_id(token) for token in SPECIAL}
    assert [tokenizer.added_token(mark) for mark in MARKS] == [4, 5, 6, 7]
    assert tokenizer.added_token("a") is None
