"""Writes a trained model as a published NemotronH checkpoint directory.

Weights are bfloat16 except `e_score_correction_bias`, which stays float32, as in the published
files. `time_step_limit` writes its infinity as an object, since a bare `Infinity` is not JSON.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from models.train.model import NemotronH
from models.train.tokenizer import BOS, EOS, PAD, SPECIAL_TOKENS

FIXED = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "attention_bias": False,
    "expand": 2,
    "mamba_hidden_act": "silu",
    "mamba_proj_bias": False,
    "mamba_ssm_cache_dtype": "float32",
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "residual_in_fp32": False,
    "rescale_prenorm_residual": False,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "time_step_floor": 0.0001,
    "time_step_limit": [0.0, {"__float__": "Infinity"}],
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "torch_dtype": "float32",
    "use_bias": False,
    "use_conv_bias": True,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
WITH_EXPERTS = {"n_group": 1, "n_shared_experts": 1, "norm_topk_prob": True, "topk_group": 1}


def published_config(model_config: dict) -> dict:
    """The keys of `config.json`, from the `model` section of a training configuration."""
    config = {"num_nextn_predict_layers": 0, **FIXED, **model_config}
    config["num_hidden_layers"] = len(model_config["hybrid_override_pattern"])
    if "n_routed_experts" in model_config:
        config |= WITH_EXPERTS
    if config["num_nextn_predict_layers"]:
        config["mtp_use_repeated_layer"] = True
    return dict(sorted(config.items()))


def published_tensors(model: NemotronH) -> dict[str, torch.Tensor]:
    """Name -> tensor as stored on disk."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        keep = name.endswith("e_score_correction_bias")
        tensors[name] = tensor.detach().to(torch.float32 if keep else torch.bfloat16).contiguous()
    return tensors


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")


def tokenizer_config(max_length: int) -> dict:
    """`tokenizer_config.json` for the tokenizer that transformers calls PreTrainedTokenizerFast."""
    special = {
        str(i): {"content": t, "special": True, "normalized": False, "lstrip": False,
                 "rstrip": False, "single_word": False}
        for i, t in enumerate(SPECIAL_TOKENS)
    }  # fmt: skip
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": special,
        "bos_token": SPECIAL_TOKENS[BOS],
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL_TOKENS[EOS],
        "model_max_length": max_length,
        "pad_token": SPECIAL_TOKENS[PAD],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def export(model: NemotronH, tokenizer: Tokenizer, directory: Path) -> None:
    """Writes weights, configuration and tokenizer files; each file replaces the older one whole."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = directory / "model.safetensors"
    partial = weights.with_suffix(".partial")
    save_file(published_tensors(model), partial, metadata={"format": "pt"})
    # safetensors writes files that only their owner may read.
    partial.chmod(0o644)
    partial.replace(weights)
    config = model.config
    _write_json(directory / "config.json", published_config(config))
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "do_sample": False},
    )
    _write_json(
        directory / "tokenizer_config.json", tokenizer_config(config["max_position_embeddings"])
    )
    tokenizer.save(str(directory / "tokenizer.json"))
