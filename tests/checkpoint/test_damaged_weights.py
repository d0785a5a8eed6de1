"""No damage to a weights file gives anything but weights or a CheckpointError."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from max.dtype import DType
from safetensors.torch import save

from coachwhip.checkpoint import load_weights, read_model
from coachwhip.checkpoint.safetensors_files import SINGLE_FILE
from coachwhip.errors import CheckpointError
from coachwhip_graphs.weights import graph_weights
from tests.reference.checkpoints import random_tensors
from tests.reference.tiny_configs import TINY_CONFIGS

SMALL = TINY_CONFIGS["nemotron_dense"] | {
    "torch_dtype": "float32",
    "hybrid_override_pattern": "M",
    "vocab_size": 4,
    "hidden_size": 16,
    "mamba_num_heads": 1,
    "n_groups": 1,
    "ssm_state_size": 16,
}
"""One small layer: 17 KB in float32, so that a file can be damaged in many ways."""


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Path, bytes]:
    """A folder with the small model's config, and the bytes of its weights."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "config.json").write_text(json.dumps(SMALL))
    return folder, save(random_tensors(SMALL), metadata={"format": "pt"})


def load(folder: Path) -> dict:
    return load_weights(folder, read_model(folder).spec, DType.bfloat16, on_warning=[].append)


def loads_or_is_a_checkpoint_error(folder: Path, data: bytes) -> None:
    (folder / SINGLE_FILE).write_bytes(data)
    try:
        weights = load(folder)
    except CheckpointError as error:
        assert str(folder) in str(error)
        assert all(line.isprintable() for line in str(error).splitlines())
    else:
        assert set(weights) == set(graph_weights(read_model(folder).spec, DType.bfloat16))


def test_the_undamaged_small_model_loads(small):
    folder, data = small
    (folder / SINGLE_FILE).write_bytes(data)
    assert len(load(folder)) == 12


@settings(deadline=None)
@given(data=st.data())
def test_truncated_files_are_checkpoint_errors(small, data):
    folder, whole = small
    end = data.draw(st.integers(0, len(whole) - 1))
    (folder / SINGLE_FILE).write_bytes(whole[:end])
    with pytest.raises(CheckpointError):
        load(folder)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_corrupted_files_load_or_are_checkpoint_errors(small, data):
    folder, whole = small
    header = 8 + int.from_bytes(whole[:8], "little")
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        in_header = data.draw(st.booleans())
        last = min(header, len(damaged)) if in_header else len(damaged)
        place = data.draw(st.integers(0, last - 1))
        damage = data.draw(st.sampled_from(["byte", "digit", "insert", "delete"]))
        if damage == "byte":
            damaged[place] = data.draw(st.integers(0, 255))
        elif damage == "digit":
            damaged[place] = ord(data.draw(st.sampled_from('0123456789-.eE[]{},:"')))
        elif damage == "insert":
            damaged[place:place] = data.draw(st.binary(min_size=1, max_size=9))
        else:
            del damaged[place : place + data.draw(st.integers(1, 9))]
    loads_or_is_a_checkpoint_error(folder, bytes(damaged))


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=200))
def test_random_bytes_are_checkpoint_errors(small, data):
    loads_or_is_a_checkpoint_error(small[0], data)


@settings(deadline=None)
@given(st.data())
def test_corrupted_headers_with_a_right_length_are_checkpoint_errors(small, data):
    folder, whole = small
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    name = data.draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
    key = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
    numbers = st.integers(-1, 1 << 70) | st.floats() | st.none() | st.booleans()
    header[name][key] = data.draw(
        st.lists(numbers, max_size=3) | numbers | st.sampled_from(["F32", "BF16", "F4", "I64", ""])
    )
    text = json.dumps(header).encode()
    loads_or_is_a_checkpoint_error(
        folder, len(text).to_bytes(8, "little") + text + whole[8 + length :]
    )
