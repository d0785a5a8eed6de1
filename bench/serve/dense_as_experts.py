"""Expresses dense MLP layers as mixture-of-experts layers that compute the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coachwhip.errors import ConfigError
from coachwhip_graphs.spec import LayerKind, LayerSpec, ModelSpec, MoeSpec

_AT_ZERO = 0.5
"""Every expert's score when the router is zero: sigmoid(0)."""


def dense_as_experts(
    spec: ModelSpec, weights: dict[str, np.ndarray]
) -> tuple[ModelSpec, dict[str, np.ndarray]]:
    """Returns an equal model whose MLP layers are MoE layers, where the model has both kinds.

    down(relu(up(u))^2) is a sum over the hidden rows, so their first part can be the shared
    expert's and the rest that of as many routed experts as a token takes. A router of zeros and
    a bias, which takes part in the choice only, always choose these; what they are weighted with
    is taken out of their `down_proj` beforehand. A token reads as many weights of the matrices as
    it did, and the router's beside them.

    Args:
        spec: The model.
        weights: Registry name -> values, float32. Only those of MLP layers are looked at.

    Raises:
        ConfigError: An MLP layer is not as wide as a token's experts together, or experts live in
            a latent space.
    """
    if spec.moe is None or not spec.count(LayerKind.MLP):
        return spec, weights
    found, layers = dict(weights), []
    for i, layer in enumerate(spec.layers):
        if layer.kind == LayerKind.MLP:
            _check(layer.intermediate_size, spec.moe)
            mixer = f"layers.{i}.mixer."
            up, down = (found.pop(f"{mixer}{name}_proj.weight") for name in ("up", "down"))
            found |= {f"{mixer}{name}": t for name, t in _experts(up, down, spec.moe).items()}
            layer = LayerSpec(LayerKind.MOE)
        layers.append(layer)
    return replace(spec, layers=tuple(layers)), found


def _check(width: int, moe: MoeSpec) -> None:
    if moe.latent_size is not None:
        raise ConfigError(
            "dense_beside_latent_experts",
            "moe_latent_size",
            moe.latent_size,
            "absent in a model with dense MLP layers",
            "experts that see a projection of the row cannot stand in for an MLP",
        )
    chosen = moe.experts_per_token * moe.intermediate_size
    if width != moe.shared_intermediate_size + chosen:
        raise ConfigError(
            "dense_width",
            "intermediate_size",
            width,
            f"moe_shared_expert_intermediate_size + num_experts_per_tok * moe_intermediate_size = "
            f"{moe.shared_intermediate_size + chosen}",
            "only then do a token's experts make up an MLP layer",
        )


def _experts(up: np.ndarray, down: np.ndarray, moe: MoeSpec) -> dict[str, np.ndarray]:
    """Splits an MLP, up [width, hidden] and down [hidden, width], over a token's experts."""
    experts, chosen, width = moe.num_experts, moe.experts_per_token, moe.intermediate_size
    hidden, shared = up.shape[1], moe.shared_intermediate_size
    weight = moe.scaling_factor * (1 / chosen if moe.normalize_weights else _AT_ZERO)
    stack_up = np.zeros((experts, width, hidden), np.float32)
    stack_up[:chosen] = up[shared:].reshape(chosen, width, hidden)
    stack_down = np.zeros((experts, hidden, width), np.float32)
    stack_down[:chosen] = down[:, shared:].reshape(hidden, chosen, width).swapaxes(0, 1)
    stack_down /= np.float32(weight)
    found = {
        "gate.weight": np.zeros((experts, hidden), np.float32),
        "gate.e_score_correction_bias": (np.arange(experts) < chosen).astype(np.float32),
        "experts.up_proj": stack_up,
        "experts.down_proj": stack_down,
    }
    if shared:
        found["shared_experts.up_proj.weight"] = np.ascontiguousarray(up[:shared])
        found["shared_experts.down_proj.weight"] = np.ascontiguousarray(down[:, :shared])
    return found
