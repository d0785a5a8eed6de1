"""What is sent of a growing output: every character and token once, and none that is taken back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coachwhip.outputs import CompletionOutput, RequestOutput
from coachwhip.sampling.params import SamplingParams
from coachwhip.serve.deltas import OutputDeltas, held_back
from coachwhip.stopping import StopChecker

TEXTS = st.text("abc", max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def output() -> RequestOutput:
    return RequestOutput("r", None, [1], [CompletionOutput(0, "", [], logprobs=[])], False)


@given(text=TEXTS, stops=STOPS)
def test_what_is_held_back_is_the_longest_beginning_of_a_stop_string(text, stops) -> None:
    ends = [text[len(text) - n :] for n in range(len(text) + 1)]
    longest = max(len(end) for end in ends if not end or any(_begins(s, end) for s in stops))
    assert held_back(text, stops) == longest


def _begins(stop: str, end: str) -> bool:
    return stop.startswith(end) and stop != end


@given(pieces=st.lists(TEXTS, max_size=8), stops=STOPS, taken=st.lists(st.booleans(), min_size=8))
def test_the_pieces_are_the_text(pieces, stops, taken) -> None:
    whole, sent, tokens, logprobs = output(), "", [], []
    deltas = OutputDeltas(whole, stops)
    checker = StopChecker(SamplingParams(stop=stops, max_tokens=100), (), 100)
    completion, text = whole.outputs[0], ""
    for number, (piece, take) in enumerate(zip(pieces, taken, strict=False)):
        text += piece
        completion.text, stopped = checker.cut(text, number + 1)
        completion.token_ids.append(number)
        completion.logprobs.append({number: -1.0})
        if stopped is not None or number == len(pieces) - 1:
            whole.finished, completion.finish_reason = True, "stop" if stopped else "length"
        if take or whole.finished:
            update = deltas.take()
            sent += update.text
            tokens += update.token_ids
            logprobs += update.logprobs
            assert completion.text.startswith(sent)
            assert (update.finish_reason is not None) == whole.finished
        if whole.finished:
            break
    assert (sent, tokens, logprobs) == (
        (completion.text, completion.token_ids, completion.logprobs)
        if whole.finished
        else ("", [], [])
    )


def test_without_stop_strings_nothing_is_held_back() -> None:
    whole = output()
    deltas = OutputDeltas(whole, ())
    whole.outputs[0].text = "abc"
    assert deltas.take().text == "abc"
    assert deltas.take().text == ""
