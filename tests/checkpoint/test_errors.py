"""Errors are one clear line that names field, value and fix."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from coachwhip.errors import (
    MISSING,
    MOST_LISTED,
    CheckpointError,
    CoachwhipError,
    ConfigError,
    EngineError,
    RequestError,
    capped,
    shown,
)


def test_config_error_names_field_value_limit_and_fix():
    error = ConfigError("max_model_len", "--max-model-len", 0, "at least 1", "raise it")
    assert str(error) == "--max-model-len is 0, but must be at least 1; raise it"
    assert (error.code, error.field, error.got) == ("max_model_len", "--max-model-len", 0)


def test_config_error_names_its_file():
    error = ConfigError("x", "n_groups", 5, "a divisor of 12", "correct it", Path("m/config.json"))
    assert str(error).startswith("m/config.json: n_groups is 5, but")


@pytest.mark.parametrize(
    "value, text",
    [
        (True, "true"),
        (None, "null"),
        ("a\nb", '"a\\nb"'),
        ([1, "x"], '[1, "x"]'),
        (math.inf, "Infinity"),
        (MISSING, "missing"),
        (Path("a/b"), "a/b"),
        ({1}, "{1}"),
        ("x" * 500, '"' + "x" * 116 + "..."),
    ],
)
def test_values_are_shown_as_a_config_spells_them(value: object, text: str):
    assert shown(value) == text


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("c", "a\nb", "x\r\ny", "one\nline", "fix\nit", "p\nq"),
        CheckpointError("p\nq", "tensor a\x00\u2028b", "fix\nit"),
        RequestError("prompt", "a\nb", "too\nlong"),
    ],
)
def test_one_problem_is_one_line(error: CoachwhipError):
    assert str(error).isprintable()


def test_several_problems_are_listed_under_one_headline():
    error = CheckpointError("folder", ["a is missing", "b is missing"], "get them again")
    assert str(error) == "folder: 2 problems; get them again\n  a is missing\n  b is missing"
    named = CheckpointError("folder", ["a", "b"], summary="tensors 2 missing")
    assert str(named).splitlines()[0] == "folder: tensors 2 missing"


def test_long_lists_are_cut_and_counted():
    assert capped(["a"] * MOST_LISTED) == ["a"] * MOST_LISTED
    assert capped(["a"] * (MOST_LISTED + 3))[-1] == "and 3 more"


def test_all_errors_have_one_base():
    for kind in (ConfigError, CheckpointError, RequestError, EngineError):
        assert issubclass(kind, CoachwhipError)
    assert str(RequestError("n", 0, "must be at least 1")) == "n is 0: must be at least 1"
