"""Configs of the tiny models that tests run: small, but odd wherever a real model may be.

Three heads to a group, d_inner other than 2 * hidden_size, a query width other than hidden_size,
three query heads to a key-value head, widths that are no power of two.
"""

from __future__ import annotations

NO_LIMIT = {"__float__": "Infinity"}
"""Infinity as transformers 5 spells it in JSON."""

_NEMOTRON_H = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": 512,
    "hidden_size": 128,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "attention_bias": False,
    "mamba_num_heads": 12,
    "mamba_head_dim": 16,
    "n_groups": 4,
    "ssm_state_size": 32,
    "conv_kernel": 4,
    "chunk_size": 16,
    "expand": 2,
    "use_conv_bias": True,
    "use_bias": False,
    "mamba_proj_bias": False,
    "mamba_hidden_act": "silu",
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "intermediate_size": 200,
    "time_step_limit": [0.0, NO_LIMIT],
    "time_step_min": 0.001,
    "time_step_max": 0.1,
    "time_step_floor": 0.0001,
    "layer_norm_epsilon": 1e-5,
    "residual_in_fp32": False,
    "rescale_prenorm_residual": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "mamba_ssm_cache_dtype": "float32",
    "num_nextn_predict_layers": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_MOE = {
    "n_routed_experts": 10,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 72,
    "moe_shared_expert_intermediate_size": 144,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}

_MAMBA2 = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "vocab_size": 512,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_heads": 12,
    "head_dim": 16,
    "state_size": 32,
    "n_groups": 1,
    "expand": 2,
    "conv_kernel": 4,
    "chunk_size": 16,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "residual_in_fp32": True,
    "layer_norm_epsilon": 1e-5,
    "time_step_limit": [0.0, NO_LIMIT],
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}

TINY_CONFIGS: dict[str, dict] = {
    "nemotron_dense": _NEMOTRON_H | {"hybrid_override_pattern": "M-M*-M-"},
    "nemotron_moe": _NEMOTRON_H | _MOE | {"hybrid_override_pattern": "MEM*EME"},
    "nemotron_grouped_moe": _NEMOTRON_H
    | _MOE
    | {"hybrid_override_pattern": "ME*E", "n_routed_experts": 8, "n_group": 2, "topk_group": 1},
    "nemotron_latent_mtp": _NEMOTRON_H
    | _MOE
    | {
        "hybrid_override_pattern": "MEM*EME",
        "routed_scaling_factor": 5.0,
        "moe_latent_size": 48,
        "num_nextn_predict_layers": 1,
        "mtp_hybrid_override_pattern": "*E",
    },
    "nemotron_conv3": _NEMOTRON_H | {"hybrid_override_pattern": "M*M-", "conv_kernel": 3},
    "nemotron_conv2": _NEMOTRON_H | {"hybrid_override_pattern": "M*M-", "conv_kernel": 2},
    "nemotron_repeats": _NEMOTRON_H
    | {"hybrid_override_pattern": "MM--**M-", "intermediate_size": [200, 72, 136]},
    "nemotron_dt_limit": _NEMOTRON_H
    | {"hybrid_override_pattern": "M-M", "time_step_limit": [0.01, 0.05]},
    "nemotron_no_conv_bias": _NEMOTRON_H
    | {"hybrid_override_pattern": "M*M-", "use_conv_bias": False},
    "mamba2_g1_tied": _MAMBA2,
    "mamba2_g4": _MAMBA2
    | {"n_groups": 4, "tie_word_embeddings": False, "eos_token_id": 2, "pad_token_id": 1},
    "state_spaces": {
        "d_model": 96,
        "n_layer": 3,
        "d_intermediate": 0,
        "vocab_size": 507,
        "ssm_cfg": {"layer": "Mamba2", "d_state": 32, "headdim": 16},
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 16,
        "tie_embeddings": True,
    },
}
"""Config dicts by name, as `json.dump` writes them. `state_spaces` is the original format."""
