"""Checkpoints are read without torch, and configs without MAX."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import coachwhip.checkpoint

FOLDER = Path(coachwhip.checkpoint.__file__).parent
NEED_MAX = {"__init__", "convert", "disk_form", "finite", "inventory", "weights"}


def imported(path: Path) -> set[str]:
    """Returns the modules a file imports; relative ones begin with a dot."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_no_file_imports_torch_and_config_readers_need_no_max(path: Path):
    roots = {name.split(".")[0] for name in imported(path) if not name.startswith(".")}
    assert not roots & {"torch", "transformers", "safetensors"}
    if path.stem not in NEED_MAX:
        assert "max" not in roots
        assert "coachwhip_graphs.weights" not in imported(path)
        assert not {f".{name}" for name in NEED_MAX} & imported(path)


def test_describing_a_model_imports_neither_max_nor_numpy():
    code = (
        "import sys; from coachwhip.checkpoint import read_model; "
        "from coachwhip.locate import small_model_dir; read_model(small_model_dir()); "
        "sys.exit(bool({'max', 'numpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_loading_never_imports_torch():
    code = "import sys, coachwhip.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
