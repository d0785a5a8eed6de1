"""The edits of a row, counted and matched in the whole text, with nothing kept between rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coachwhip import SamplingParams
from coachwhip.sampling.edits import Edits

Effects = dict[int, tuple[int, float]]
"""Token -> how often the text has it (0: only the prompt, -1: of no account) and its bias."""


def effective(edits: Edits) -> Effects:
    """Returns edits by token, without those that change nothing."""
    tokens, counts, biases = (array.tolist() for array in edits)
    assert len(tokens) == len(counts) == len(biases)
    assert len(set(tokens)) == len(tokens), "a token has two edits"
    listed = zip(tokens, counts, biases, strict=True)
    return {t: (count, bias) for t, count, bias in listed if (count, bias) != (-1, 0.0)}


def expected(
    params: SamplingParams,
    prompt: Sequence[int],
    words: Sequence[tuple[int, ...]],
    ends: Sequence[int],
    text: Sequence[int],
) -> Effects:
    """Returns the edits of the row that chooses the token after a text."""
    text, found = list(text), {}
    forbidden = set(ends) if len(text) < params.min_tokens else set()
    for word in words:
        begin = list(word[:-1])
        if text[len(text) - len(begin) :] == begin and len(begin) <= len(text):
            forbidden.add(word[-1])
    bias = params.logit_bias or {}
    for token in {*bias, *prompt, *text, *forbidden}:
        count = -1
        if params.penalizes and token in text:
            count = text.count(token)
        elif params.repetition_penalty != 1.0 and token in prompt:
            count = 0
        added = -np.inf if token in forbidden else bias.get(token, 0.0)
        if (count, added) != (-1, 0.0):
            found[token] = (count, added)
    return found
