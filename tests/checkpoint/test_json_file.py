"""JSON files are read with Python's and transformers' spellings of infinity, or located errors."""

from __future__ import annotations

import math

import pytest

from coachwhip.checkpoint.json_file import parse_json_object, read_json_object
from coachwhip.errors import CheckpointError


@pytest.mark.parametrize(
    "text, value",
    [
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ('{"__float__": "Infinity"}', math.inf),
        ('{"__float__": "-Infinity"}', -math.inf),
        ('{"__float__": "other"}', {"__float__": "other"}),
        ('{"__float__": []}', {"__float__": []}),
        ('{"__float__": "NaN", "more": 1}', {"__float__": "NaN", "more": 1}),
    ],
)
def test_floats_beyond_json(tmp_path, text: str, value: object):
    path = tmp_path / "config.json"
    path.write_text(f'{{"x": {text}}}')
    assert read_json_object(path) == {"x": value}


@pytest.mark.parametrize("text", ["NaN", '{"__float__": "NaN"}'])
def test_not_a_number(text: str, tmp_path):
    assert math.isnan(parse_json_object(f'{{"x": {text}}}'.encode(), tmp_path)["x"])


def test_a_byte_order_mark_is_skipped(tmp_path):
    assert parse_json_object(b'\xef\xbb\xbf{"x": 1}', tmp_path) == {"x": 1}


@pytest.mark.parametrize(
    "data, where",
    [
        (b'{\n "a": 1,\n "b": }', "line 3 column 7"),
        (b"", "line 1 column 1"),
        (b'{"a": 1} {', "line 1 column 10"),
        (b'{\n "a": "\xff"}', "line 2 column 8: byte 0xff is not UTF-8"),
        (b'\xef\xbb\xbf{"\xc3(": 1}', "line 1 column 3: byte 0xc3 is not UTF-8"),
        (b"[1, 2]", "is a list, but must be a JSON object"),
        (b'"x"', "is a string, but must be a JSON object"),
        (b"null", "is null, but must be a JSON object"),
        (b"true", "is a boolean, but must be a JSON object"),
        (b"1.5", "is a number, but must be a JSON object"),
        (b'{"a": 1, "b": 2, "a": 3}', "gives the key 'a' twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be parsed as JSON"),
        (b'{"a": ' + b"[" * 100_000, "cannot be parsed as JSON"),
    ],
)
def test_broken_files_are_located(tmp_path, data: bytes, where: str):
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_json_object(path)
    assert where in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        read_json_object(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json_object(tmp_path)
