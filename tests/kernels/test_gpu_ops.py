"""Every op compiles for a GPU, on a machine that has none."""

import subprocess
import sys
from pathlib import Path

import pytest

ELF = b"\x7fELF"
CUDA = 190
"""Machine of an ELF file with code for NVIDIA GPUs."""


def machines(data: bytes) -> list[int]:
    """Returns the machine of each ELF file that lies in the data."""
    found = []
    at = data.find(ELF)
    while at >= 0:
        found.append(int.from_bytes(data[at + 18 : at + 20], "little"))
        at = data.find(ELF, at + 1)
    return found


@pytest.mark.slow
def test_every_op_compiles_for_a_gpu(tmp_path: Path) -> None:
    """float32 and bfloat16 rows, every type of state, in one graph for sm_90a."""
    mef = tmp_path / "every_op.mef"
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for_gpu", mef],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert CUDA in machines(mef.read_bytes())
