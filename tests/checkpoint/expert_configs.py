"""Configs of tiny models with experts."""

from __future__ import annotations

from tests.reference.tiny_configs import TINY_CONFIGS

EXPERT_CONFIGS: dict[str, dict] = {
    name: config for name, config in TINY_CONFIGS.items() if "n_routed_experts" in config
} | {
    "grouped_latent_mtp": TINY_CONFIGS["nemotron_latent_mtp"]
    | {
        "hybrid_override_pattern": "M*E-E",
        "n_routed_experts": 12,
        "num_experts_per_tok": 5,
        "n_group": 3,
        "topk_group": 2,
        "norm_topk_prob": False,
        "moe_latent_size": 40,
        "mtp_hybrid_override_pattern": "*-E",
    }
}
"""Those that other tests run, and one with everything at once and a head of three layers."""
