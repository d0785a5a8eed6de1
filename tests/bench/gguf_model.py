"""Reads a GGUF file back as published tensors, by a table of its own."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize

ROOT = {
    "token_embd.weight": "backbone.embeddings.weight",
    "output_norm.weight": "backbone.norm_f.weight",
    "output.weight": "lm_head.weight",
}
LAYER = {
    "attn_norm.weight": "norm.weight",
    "ssm_in.weight": "mixer.in_proj.weight",
    "ssm_conv1d.weight": "mixer.conv1d.weight",
    "ssm_conv1d.bias": "mixer.conv1d.bias",
    "ssm_a": "mixer.A_log",
    "ssm_d": "mixer.D",
    "ssm_dt.bias": "mixer.dt_bias",
    "ssm_norm.weight": "mixer.norm.weight",
    "ssm_out.weight": "mixer.out_proj.weight",
    "attn_q.weight": "mixer.q_proj.weight",
    "attn_k.weight": "mixer.k_proj.weight",
    "attn_v.weight": "mixer.v_proj.weight",
    "attn_output.weight": "mixer.o_proj.weight",
    "ffn_up.weight": "mixer.up_proj.weight",
    "ffn_down.weight": "mixer.down_proj.weight",
    "ffn_gate_inp.weight": "mixer.gate.weight",
    "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
    "ffn_up_exps.weight": "mixer.experts.{}.up_proj.weight",
    "ffn_down_exps.weight": "mixer.experts.{}.down_proj.weight",
    "ffn_up_shexp.weight": "mixer.shared_experts.up_proj.weight",
    "ffn_down_shexp.weight": "mixer.shared_experts.down_proj.weight",
    "ffn_latent_down.weight": "mixer.fc1_latent_proj.weight",
    "ffn_latent_up.weight": "mixer.fc2_latent_proj.weight",
}
HEAD_FIRST = {
    "nextn.enorm.weight": "enorm.weight",
    "nextn.hnorm.weight": "hnorm.weight",
    "nextn.eh_proj.weight": "eh_proj.weight",
}
HEAD_LAST = {
    "nextn.shared_head_norm.weight": "final_layernorm.weight",
    "post_attention_norm.weight": "norm.weight",
}


def arrays(file: Path) -> dict[str, np.ndarray]:
    """Returns llama.cpp's name -> values as float32, in numpy's order of axes."""
    return {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(file).tensors}


def metadata(file: Path) -> dict[str, object]:
    """Returns every key's value."""
    return {name: field.contents() for name, field in GGUFReader(file).fields.items()}


def published(file: Path, layers: int) -> dict[str, torch.Tensor]:
    """Returns published name -> tensor; block `layers` is the multi-token-prediction head."""
    found = {}
    for name, values in arrays(file).items():
        if name in ROOT:
            found[ROOT[name]] = values
            continue
        block, rest = re.fullmatch(r"blk\.(\d+)\.(.+)", name).groups()
        if int(block) < layers:
            prefix, own = f"backbone.layers.{block}.", LAYER[rest]
        elif rest in HEAD_FIRST:
            prefix, own = "mtp.layers.0.", HEAD_FIRST[rest]
        elif rest in HEAD_LAST:
            prefix, own = "mtp.layers.1.", HEAD_LAST[rest]
        else:
            own = LAYER[rest]
            is_attention = rest.startswith("attn_")
            prefix = "mtp.layers.0." if is_attention else "mtp.layers.1."
        found |= {prefix + n: v for n, v in _published_form(own, values).items()}
    return {name: torch.from_numpy(np.array(values)) for name, values in found.items()}


def _published_form(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    if "{}" in name:
        return {name.format(e): matrix for e, matrix in enumerate(values)}
    if name == "mixer.A_log":
        return {name: np.log(-values[:, 0])}
    if name == "mixer.conv1d.weight":
        return {name: values[:, None, :]}
    if name == "mixer.D":
        return {name: values[:, 0]}
    if name == "mixer.norm.weight":
        return {name: values.reshape(-1)}
    return {name: values}
