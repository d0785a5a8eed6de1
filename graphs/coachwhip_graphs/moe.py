"""The MoE mixer of NemotronH: sigmoid router, routed experts (maybe in a latent), shared one."""

from __future__ import annotations

from max.dtype import DType
from max.graph import TensorValue, ops

from .mlp import mlp
from .ops import linear, moe_experts, moe_route
from .registry import Registry
from .spec import MoeSpec


def moe(x: TensorValue, weights: Registry, spec: MoeSpec) -> TensorValue:
    """Applies the mixture of experts to each row.

    out = [fc2](sum_j w_j * expert_j([fc1] x)) + shared(x). The router works in float32 on the full
    row; the latent projections fc1 and fc2 exist only with `latent_size`.

    Args:
        x: [tokens, hidden], model dtype.
        weights: The layer's mixer weights.
        spec: Shapes and routing.

    Returns:
        [tokens, hidden], dtype of x.

    See: model code of NemotronH; tests/reference/nemotron_h.py.
    """
    logits = linear(ops.cast(x, DType.float32), weights.matrix("gate.weight"))
    chosen, share = moe_route(
        logits,
        weights["gate.e_score_correction_bias"],
        count=spec.experts_per_token,
        groups=spec.num_groups,
        kept_groups=spec.groups_per_token,
        normalize=spec.normalize_weights,
        scale=spec.scaling_factor,
    )
    rows = linear(x, weights.matrix("fc1_latent_proj.weight")) if spec.latent_size else x
    routed = moe_experts(
        rows, chosen, share, weights.matrix("experts.up_proj"), weights.matrix("experts.down_proj")
    )
    if spec.latent_size:
        routed = linear(routed, weights.matrix("fc2_latent_proj.weight"))
    if not spec.shared_intermediate_size:
        return routed
    return routed + mlp(x, weights.below("shared_experts."))
