"""How tokens are chosen, as command-line flags that all commands that generate share."""

from __future__ import annotations

from collections.abc import Callable

import click

from .engine_flags import JSON_OBJECT

_NAMES = {"bad_word": "bad_words"}
"""Flags whose parameter has another name."""

_FLAGS = {
    "temperature": click.option(
        "--temperature",
        type=float,
        help="0, the default, takes the likeliest token; 1 samples as the model says. --seed "
        "repeats a text.",
    ),
    "top_p": click.option(
        "--top-p", type=float, help="Sample among the fewest tokens with this share together."
    ),
    "top_k": click.option("--top-k", type=int, help="Sample among this many likeliest tokens."),
    "min_p": click.option(
        "--min-p", type=float, help="Sample among tokens this likely, relative to the likeliest."
    ),
    "presence_penalty": click.option(
        "--presence-penalty", type=float, help="Off the logits of tokens in the text, -2 to 2."
    ),
    "frequency_penalty": click.option(
        "--frequency-penalty", type=float, help="The same for each time they are in it."
    ),
    "repetition_penalty": click.option(
        "--repetition-penalty",
        type=float,
        help="Over 1: tokens of prompt and text become less likely.",
    ),
    "logit_bias": click.option(
        "--logit-bias",
        type=JSON_OBJECT,
        help='Added to logits, -100 to 100 by token id: {"17": -100}.',
    ),
    "bad_word": click.option(
        "--bad-word", multiple=True, help="A word that is not written; repeat it for several."
    ),
    "min_tokens": click.option(
        "--min-tokens", type=int, help="No end token or stop string before so many tokens."
    ),
}


def sampling_flags(command: Callable) -> Callable:
    """Adds flags for what `SamplingParams` says of the choice of tokens."""
    for flag in reversed(_FLAGS.values()):
        command = flag(command)
    return command


def take_sampling(options: dict[str, object]) -> dict[str, object]:
    """Takes these flags out of a command's options; returns what was given, for SamplingParams."""
    given = {name: options.pop(name) for name in _FLAGS}
    return {
        _NAMES.get(name, name): value
        for name, value in given.items()
        if value is not None and value != ()
    }
