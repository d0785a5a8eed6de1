"""`ReasoningSplitter`: what is reasoning and what is answer, for any chunks of the text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.openai.reasoning import CLOSE, OPEN, ReasoningSplitter, beginning, opens_reasoning

CASES = [
    # opened, text, reasoning, answer
    (True, "I see.\n</think>\n\nYes.\n", "I see.", "Yes.\n"),
    (True, "\nI see.</think>Yes.", "I see.", "Yes."),
    (True, "\n</think>\n\nYes.", "", "Yes."),
    (True, "</think>", "", ""),
    (True, "never ends\n", "never ends\n", ""),
    (True, "a </thin b </think", "a </thin b </think", ""),
    (True, "a\n\nb\n</think>c</think>d", "a\n\nb", "c</think>d"),
    (True, "<think>\nx</think>y", "<think>\nx", "y"),
    (False, "<think>\nI see.\n</think>\n\nYes.", "I see.", "Yes."),
    (False, " \n<think>x</think>y", "x", "y"),
    (False, "Yes. <think>x</think>y", "", "Yes. <think>x</think>y"),
    (False, "\n\nYes.", "", "\n\nYes."),
    (False, "<thin", "", "<thin"),
    (False, "<thing>", "", "<thing>"),
    (False, "", "", ""),
    (True, "", "", ""),
]


def split(opened: bool, chunks: list[str]) -> tuple[str, str]:
    splitter = ReasoningSplitter(opened)
    parts = [*map(splitter.feed, chunks), splitter.finish()]
    return "".join(p[0] for p in parts), "".join(p[1] for p in parts)


@pytest.mark.parametrize("opened, text, reasoning, answer", CASES)
def test_reasoning_and_answer(opened, text, reasoning, answer):
    assert split(opened, [text]) == (reasoning, answer)
    assert split(opened, list(text)) == (reasoning, answer)


PIECES = st.lists(
    st.sampled_from([OPEN, CLOSE, "\n", "\r\n", " ", "a", "<", "<thi", "nk>", "</think", "é"]),
    max_size=12,
)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(st.booleans(), PIECES, st.data())
def test_chunks_do_not_matter_and_nothing_is_lost(opened, pieces, data):
    text = "".join(pieces)
    whole = split(opened, [text])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(opened, chunks) == whole == split(opened, list(text))
    # Only the marks and the line breaks beside them are left out.
    reasoning, answer = whole
    kept = reasoning + answer
    rest = text.lstrip().removeprefix(OPEN) if kept != text and not opened else text
    assert bare(kept) == bare(rest.replace(CLOSE, "", 1) if kept != text else text)


def bare(text: str) -> str:
    return text.replace("\n", "").replace("\r", "").replace(" ", "")


def test_what_is_known_comes_at_once():
    splitter = ReasoningSplitter(True)
    assert splitter.feed("I see") == ("I see", "")
    assert splitter.feed(" it.\n") == (" it.", "")
    assert splitter.feed("And</th") == ("\nAnd", "")
    assert splitter.feed("ink>\n") == ("", "")
    assert splitter.feed("Yes") == ("", "Yes")
    assert splitter.reasons
    plain = ReasoningSplitter(False)
    assert plain.feed("Yes") == ("", "Yes") and not plain.reasons


def test_prompts_that_open_reasoning():
    assert opens_reasoning("<|im_start|>assistant\n<think>\n") and opens_reasoning("a<think>")
    assert not opens_reasoning("<think></think>") and not opens_reasoning("<think> a")


def test_beginnings_of_a_mark():
    assert [beginning(text, "</a>") for text in ("", "x", "x<", "x</", "</a", "</a>", "<</")] == [
        *(0, 0, 1, 2, 3, 0, 2)
    ]
