"""Reads the mixture-of-experts keys of a NemotronH config."""

from __future__ import annotations

from coachwhip_graphs.limits import EXPERTS_LIMIT, GROUPS_LIMIT
from coachwhip_graphs.spec import MoeSpec

from .hf_config import HFConfig


def moe_spec(config: HFConfig) -> MoeSpec:
    """Returns the shapes and the routing of every MoE layer.

    Sizes have no default. What only steers the routing has transformers': no groups, weights
    divided by their sum, no factor on them.

    Raises:
        ConfigError: A key is missing or malformed; more than 1,024 experts or 64 groups; groups do
            not divide the experts; a token asks for more experts than its groups hold; more than
            one shared expert.
    """
    experts_key, experts = config.named_size("n_routed_experts", "num_local_experts")
    groups = config.size("n_group", default=1)
    for key, size, limit in (
        (experts_key, experts, EXPERTS_LIMIT),
        ("n_group", groups, GROUPS_LIMIT),
    ):
        if size > limit:
            raise config.error(
                key, size, f"at most {limit}", "the kernels route to no more", "unsupported"
            )
    if experts % groups:
        raise config.error(
            "n_group",
            groups,
            f"a divisor of {experts_key} = {experts}",
            "every group holds the same number of experts",
        )
    in_group = experts // groups
    if groups > 1 and in_group < 2:
        raise config.error(
            "n_group",
            groups,
            f"at most half of {experts_key} = {experts}",
            "a group is ranked by its two best experts",
        )
    kept = config.size("topk_group", default=1)
    if kept > groups:
        raise config.error(
            "topk_group", kept, f"at most n_group = {groups}", "correct one of the two"
        )
    chosen = config.size("num_experts_per_tok")
    if chosen > kept * in_group:
        raise config.error(
            "num_experts_per_tok",
            chosen,
            f"at most {kept * in_group}, the experts in {kept} of {groups} groups"
            if groups > 1
            else f"at most {experts_key} = {experts}",
            "correct one of the sizes",
        )
    return MoeSpec(
        num_experts=experts,
        experts_per_token=chosen,
        intermediate_size=config.size("moe_intermediate_size"),
        shared_intermediate_size=_shared_width(config),
        latent_size=config.size("moe_latent_size", default=None),
        num_groups=groups,
        groups_per_token=kept,
        normalize_weights=config.flag("norm_topk_prob", default=True),
        scaling_factor=config.factor("routed_scaling_factor", default=1.0),
    )


def _shared_width(config: HFConfig) -> int:
    """Returns the shared expert's width, 0 without one.

    `moe_shared_expert_intermediate_size` is not read as a width per expert: transformers and vLLM
    disagree on that for more than one, which no published model has.
    """
    count = config.count("n_shared_experts", default=1)
    if count > 1:
        raise config.error(
            "n_shared_experts",
            count,
            "0 or 1",
            "several shared experts are not supported",
            "unsupported",
        )
    return config.size("moe_shared_expert_intermediate_size") if count else 0
