"""Writes a NemotronH of about 100 million parameters, with random weights."""

from __future__ import annotations

from pathlib import Path

CONFIG = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M*-M-M-M*-M-M-M*-M-M-M-",
    "vocab_size": 8192,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "attention_bias": False,
    "mamba_num_heads": 24,
    "mamba_head_dim": 64,
    "n_groups": 4,
    "ssm_state_size": 64,
    "conv_kernel": 4,
    "chunk_size": 64,
    "expand": 2,
    "use_conv_bias": True,
    "use_bias": False,
    "mamba_proj_bias": False,
    "mamba_hidden_act": "silu",
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "intermediate_size": 2304,
    "layer_norm_epsilon": 1e-5,
    "residual_in_fp32": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def write_random_model(folder: Path) -> int:
    """Writes the checkpoint and returns its number of parameters."""
    from tests.reference.checkpoints import write_checkpoint

    written = write_checkpoint(folder, CONFIG, dtype="bfloat16")
    return sum(tensor.numel() for tensor in written.values())
