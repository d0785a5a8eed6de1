"""Loading holds one copy of the weights in memory, however the experts are stored."""

from __future__ import annotations

import json
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from coachwhip.checkpoint import disk_tensors, read_model
from tests.reference.tiny_configs import TINY_CONFIGS

CONFIG = TINY_CONFIGS["nemotron_moe"] | {
    "hybrid_override_pattern": "MEE",
    "hidden_size": 1024,
    "n_routed_experts": 48,
    "moe_intermediate_size": 1024,
    "torch_dtype": "bfloat16",
}
"""Two layers of experts with 201 MB in bfloat16 each, in matrices of 2 MB."""

EXPERT_BYTES = 2 * 48 * 2 * 1024 * 1024 * 2

PROGRAM = """
import resource, sys
from pathlib import Path
from max.dtype import DType
from coachwhip.checkpoint import load_weights, read_model

def memory(key):
    status = Path("/proc/self/status")
    if status.exists():  # kilobytes; ru_maxrss would include what the parent held
        line = next(l for l in status.read_text().splitlines() if l.startswith(key))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

spec = read_model(sys.argv[1]).spec
before = memory("VmRSS")
weights = load_weights(sys.argv[1], spec, DType[sys.argv[2]], panels=sys.argv[3] == "panels")
print(memory("VmHWM") - before, len(weights))
"""
"""Prints by how many bytes loading raised the peak of the resident memory."""


def write_holes(folder: Path, dtype: str, stacked: bool) -> int:
    """Writes a checkpoint of zeros that takes no space on the disk; returns its bytes."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header, end = {}, 0
    for name, shape in disk_tensors(read_model(folder).spec).items():
        layer, _, rest = name.partition(".experts.")
        if stacked and rest:
            expert, matrix, _ = rest.split(".")
            if expert != "0":
                continue
            name, shape = f"{layer}.experts.{matrix}", (CONFIG["n_routed_experts"], *shape)
        start, end = end, end + prod(shape) * (2 if dtype == "BF16" else 4)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + end)
    return end


def peak(folder: Path, dtype: str, form: str = "plain") -> int:
    """Returns the bytes by which loading in a fresh process raises its peak."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), dtype, form],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    grown, weights = map(int, run.stdout.split())
    assert weights == 26
    return grown


@pytest.mark.parametrize(
    "stored, stacked, dtype, copies",
    [
        ("BF16", False, "bfloat16", 1.0),
        ("BF16", True, "bfloat16", 1.0),
        ("F32", False, "bfloat16", 0.5),
    ],
)
def test_peak_memory_is_one_copy(tmp_path, stored: str, stacked: bool, dtype: str, copies: float):
    size = write_holes(tmp_path / "model", stored, stacked)
    assert EXPERT_BYTES > 400e6
    assert size * copies > EXPERT_BYTES
    assert 0.9 * size * copies < peak(tmp_path / "model", dtype) < 1.15 * size * copies


@pytest.mark.parametrize(
    "stored, stacked, copies, tensors",
    [("BF16", False, 1.0, 1), ("F32", False, 0.5, 1), ("F32", True, 0.5, 2)],
)
def test_peak_memory_in_panels_is_one_copy_and_a_tensor_or_two(
    tmp_path, stored: str, stacked: bool, copies: float, tensors: int
):
    size = write_holes(tmp_path / "model", stored, stacked) * copies
    more = tensors * EXPERT_BYTES / 4
    assert 0.9 * size < peak(tmp_path / "model", "bfloat16", "panels") < 1.15 * size + more
