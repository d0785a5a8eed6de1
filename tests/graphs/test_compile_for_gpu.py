"""The whole step graph compiles for an NVIDIA GPU (sm_90a) on a machine without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reference.checkpoints import write_checkpoint
from tests.reference.tiny_configs import TINY_CONFIGS

PROGRAM = Path(__file__).with_name("compile_for_gpu.py")

# MAX compiles a family of GPU matmuls for each weight shape, about half a minute each, so the
# matrices are all 128 x 128 but for in_proj.
SQUARE = TINY_CONFIGS["nemotron_moe"] | {
    "hybrid_override_pattern": "M*-E",
    "vocab_size": 128,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 128,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_routed_experts": 128,
    "moe_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 128,
}


@pytest.mark.slow
def test_step_graph_compiles_for_sm_90a(tmp_path):
    write_checkpoint(tmp_path, SQUARE)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "bfloat16"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sm_90a"]
    assert found["cuda_images"] >= 8, "the graph's kernels are not among the GPU code"
