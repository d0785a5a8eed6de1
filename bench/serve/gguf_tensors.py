"""What llama.cpp calls a NemotronH's tensors, and the form it wants them in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from gguf import MODEL_TENSOR, TENSOR_NAMES

from coachwhip_graphs.spec import LayerKind, ModelSpec

_ROOT = {
    "embeddings.weight": "token_embd.weight",
    "norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

_T = MODEL_TENSOR
_LAYER = {
    "norm.weight": (_T.ATTN_NORM, ".weight"),
    "mixer.in_proj.weight": (_T.SSM_IN, ".weight"),
    "mixer.conv1d.weight": (_T.SSM_CONV1D, ".weight"),
    "mixer.conv1d.bias": (_T.SSM_CONV1D, ".bias"),
    "mixer.A": (_T.SSM_A, ""),
    "mixer.D": (_T.SSM_D, ""),
    "mixer.dt_bias": (_T.SSM_DT, ".bias"),
    "mixer.norm.weight": (_T.SSM_NORM, ".weight"),
    "mixer.out_proj.weight": (_T.SSM_OUT, ".weight"),
    "mixer.q_proj.weight": (_T.ATTN_Q, ".weight"),
    "mixer.k_proj.weight": (_T.ATTN_K, ".weight"),
    "mixer.v_proj.weight": (_T.ATTN_V, ".weight"),
    "mixer.o_proj.weight": (_T.ATTN_OUT, ".weight"),
    "mixer.up_proj.weight": (_T.FFN_UP, ".weight"),
    "mixer.down_proj.weight": (_T.FFN_DOWN, ".weight"),
    "mixer.gate.weight": (_T.FFN_GATE_INP, ".weight"),
    "mixer.gate.e_score_correction_bias": (_T.FFN_EXP_PROBS_B, ".bias"),
    "mixer.experts.up_proj": (_T.FFN_UP_EXP, ".weight"),
    "mixer.experts.down_proj": (_T.FFN_DOWN_EXP, ".weight"),
    "mixer.shared_experts.up_proj.weight": (_T.FFN_UP_SHEXP, ".weight"),
    "mixer.shared_experts.down_proj.weight": (_T.FFN_DOWN_SHEXP, ".weight"),
    "mixer.fc1_latent_proj.weight": (_T.MOE_LATENT_DOWN, ".weight"),
    "mixer.fc2_latent_proj.weight": (_T.MOE_LATENT_UP, ".weight"),
}
_HEAD = {
    "enorm.weight": (_T.NEXTN_ENORM, ".weight"),
    "hnorm.weight": (_T.NEXTN_HNORM, ".weight"),
    "eh_proj.weight": (_T.NEXTN_EH_PROJ, ".weight"),
    "final_layernorm.weight": (_T.NEXTN_SHARED_HEAD_NORM, ".weight"),
}


def has_head(spec: ModelSpec) -> bool:
    """Says whether llama.cpp runs the multi-token-prediction head: attention, then experts."""
    return "".join(layer.kind for layer in spec.mtp_layers) == "*E"


def gguf_tensors(
    spec: ModelSpec, weights: dict[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields llama.cpp's name and the values of every weight.

    The head's two layers are one block behind the others, whose experts have a norm of a name of
    their own.

    Args:
        spec: The model.
        weights: Registry name -> values. Those of a head that llama.cpp cannot run are left out.
    """
    for name, values in weights.items():
        if name in _ROOT:
            yield _ROOT[name], values
        elif name.startswith("layers."):
            _, block, rest = name.split(".", 2)
            yield _name(_LAYER, rest, int(block)), _form(rest, values, spec)
        elif has_head(spec):
            _, _, depth, rest = name.split(".", 3)
            block = len(spec.layers)
            if rest in _HEAD:
                yield _name(_HEAD, rest, block), values
            elif depth == "1" and rest == "norm.weight":
                yield f"{TENSOR_NAMES[_T.ATTN_POST_NORM].format(bid=block)}.weight", values
            else:
                yield _name(_LAYER, rest, block), values


def feed_forward_lengths(spec: ModelSpec) -> list[int]:
    """Returns each block's width of hidden rows, 0 where it is no MLP or MoE layer."""
    widths = {LayerKind.MOE: spec.moe.intermediate_size if spec.moe else 0}
    found = [layer.intermediate_size or widths.get(layer.kind, 0) for layer in spec.layers]
    return found + [widths[LayerKind.MOE]] * has_head(spec)


def kv_head_counts(spec: ModelSpec) -> list[int]:
    """Returns each block's key-value heads, 0 where it has no attention."""
    heads = spec.attention.num_kv_heads
    found = [heads * (layer.kind == LayerKind.ATTENTION) for layer in spec.layers]
    return found + [heads] * has_head(spec)


def _name(names: dict, rest: str, block: int) -> str:
    tensor, ending = names[rest]
    return TENSOR_NAMES[tensor].format(bid=block) + ending


def _form(rest: str, values: np.ndarray, spec: ModelSpec) -> np.ndarray:
    if rest == "mixer.conv1d.weight":
        return np.ascontiguousarray(values.T)  # [conv_dim, d_conv]
    if rest in ("mixer.A", "mixer.D"):
        return values.reshape(-1, 1)
    if rest == "mixer.norm.weight":
        return values.reshape(spec.mamba.ngroups, -1)
    return values
