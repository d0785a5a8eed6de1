"""Text that grows token by token equals the text decoded at once, whatever the tokens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.locate import small_model_dir
from coachwhip.sampling_params import SamplingParams
from coachwhip.stopping import StopChecker
from coachwhip.tokenizer import IncrementalText, Tokenizer

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
        cut, stop = checker.cut(text)
        places = [text.index(s) for s in stops if s in text]
        if places:
            assert stop in stops and cut == text[: min(places)]
            return
        assert (cut, stop) == (text, None)
