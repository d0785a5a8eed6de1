"""Configs of NVIDIA's published NemotronH models, of what their tensors' shapes depend on.

Numbers are those of the Megatron-Bridge recipes at
https://github.com/NVIDIA-NeMo/Megatron-Bridge.
"""

from __future__ import annotations

_COMMON = {
    "model_type": "nemotron_h",
    "vocab_size": 131072,
    "n_groups": 8,
    "conv_kernel": 4,
    "head_dim": 128,
    "ssm_state_size": 128,
    "mamba_head_dim": 64,
    "num_key_value_heads": 8,
    "use_conv_bias": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}

_MOE = {
    "num_key_value_heads": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
}

_H_SMALL = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
_NANO_30B = _COMMON | _MOE | {
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "hidden_size": 2688,
    "mamba_num_heads": 64,
    "num_attention_heads": 32,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "routed_scaling_factor": 2.5,
}  # fmt: skip
_MTP = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}


def _dense(pattern: str, hidden: int, nheads: int, q_heads: int, width: int, **others) -> dict:
    return _COMMON | {
        "hybrid_override_pattern": pattern,
        "hidden_size": hidden,
        "mamba_num_heads": nheads,
        "num_attention_heads": q_heads,
        "intermediate_size": width,
        **others,
    }


PUBLISHED: dict[str, dict] = {
    "Nemotron-H-4B": _dense(_H_SMALL, 3072, 112, 32, 12288),
    "Nemotron-H-8B": _dense(_H_SMALL, 4096, 128, 32, 21504),
    "Nemotron-H-47B": _dense(
        "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*"
        "-M-M-M-M-M-",
        8192, 256, 64, 30720, ssm_state_size=256,
    ),
    "Nemotron-H-56B": _dense(
        "M-M-M-M*" + 9 * "-M-M-M-M-M*" + "-M-M-M-M-M-", 8192, 256, 64, 32768, ssm_state_size=256
    ),
    "Nano-9B-v2": _dense(
        "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        4480, 128, 40, 15680, mamba_head_dim=80,
    ),
    "Nano-12B-v2": _dense(
        "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-",
        5120, 128, 40, 20480, mamba_head_dim=80,
    ),
    "Nemotron-3-Nano-4B": _dense(
        "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-", 3136, 96, 40, 12544, mamba_head_dim=80
    ),
    "Nemotron-3-Nano-30B-A3B": _NANO_30B,
    "Nemotron-3.5-Lightning-30B-A3B": _NANO_30B | _MTP,
    "Nemotron-3-Super-120B-A12B": _NANO_30B | _MTP | {
        "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM"
        "*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
        "hidden_size": 4096,
        "mamba_num_heads": 128,
        "n_routed_experts": 512,
        "num_experts_per_tok": 22,
        "moe_intermediate_size": 2688,
        "moe_shared_expert_intermediate_size": 5376,
        "moe_latent_size": 1024,
        "routed_scaling_factor": 5.0,
    },
    "Nemotron-3-Ultra-550B-A55B": _NANO_30B | _MTP | {
        "hybrid_override_pattern": "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM"
        "*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "hidden_size": 8192,
        "mamba_num_heads": 256,
        "num_attention_heads": 64,
        "n_routed_experts": 512,
        "num_experts_per_tok": 22,
        "moe_intermediate_size": 5120,
        "moe_shared_expert_intermediate_size": 10240,
        "moe_latent_size": 2048,
        "routed_scaling_factor": 5.0,
    },
}  # fmt: skip
"""Config dicts by model."""
