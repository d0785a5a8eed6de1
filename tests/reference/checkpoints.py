"""Writes checkpoints of random weights, with the published names, for any tiny config.

The draws give logits of magnitude about 6, so that greedy tokens have clear gaps; the weights
that a model starts its training with would give logits near zero.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import torch
from safetensors.torch import save_file

LIST_NAMES = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
LIST_NAMES_5 = LIST_NAMES | {"M": "linear_attention", "*": "full_attention"}
_LETTERS = {name: letter for names in (LIST_NAMES, LIST_NAMES_5) for letter, name in names.items()}
_EXPERT = re.compile(r"(.*\.mixer\.experts)\.(\d+)\.(up_proj|down_proj)\.weight")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def layer_letters(config: dict, prefix: str = "") -> str:
    """Returns the pattern string of a config in any spelling; `prefix` may be `mtp_`."""
    if config.get("model_type") == "mamba2":
        return "M" * config["num_hidden_layers"]
    if "n_layer" in config:
        return "M" * config["n_layer"]
    listed = config.get(f"{prefix}layers_block_type")
    if listed:
        return "".join(_LETTERS[name] for name in listed)
    return config.get(f"{prefix}hybrid_override_pattern") or ""


def mamba_sizes(config: dict) -> dict:
    """Returns nheads, headdim, dstate, ngroups, d_conv and conv_bias of a config in any format."""
    if "ssm_cfg" in config:
        ssm = config["ssm_cfg"]
        headdim = ssm.get("headdim", 64)
        return {
            "nheads": ssm.get("expand", 2) * config["d_model"] // headdim,
            "headdim": headdim,
            "dstate": ssm.get("d_state", 128),
            "ngroups": ssm.get("ngroups", 1),
            "d_conv": ssm.get("d_conv", 4),
            "conv_bias": ssm.get("conv_bias", True),
        }
    pure = config["model_type"] == "mamba2"
    return {
        "nheads": config["num_heads" if pure else "mamba_num_heads"],
        "headdim": config["head_dim" if pure else "mamba_head_dim"],
        "dstate": config["state_size" if pure else "ssm_state_size"],
        "ngroups": config["n_groups"],
        "d_conv": config["conv_kernel"],
        "conv_bias": config.get("use_conv_bias", True),
    }


class Draws:
    """Seeded random tensors."""

    def __init__(self, seed: int, dt_bias: tuple[float, float] = (-6.0, -2.0)):
        self.generator = torch.Generator().manual_seed(seed)
        self.dt_bias = dt_bias

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> torch.Tensor:
        return mean + scale * torch.randn(*shape, generator=self.generator)

    def uniform(self, size: int, low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(size, generator=self.generator)

    def matrix(self, rows: int, columns: int) -> torch.Tensor:
        return self.normal(rows, columns, scale=1.5 / math.sqrt(columns))

    def norm(self, size: int) -> torch.Tensor:
        return self.normal(size, scale=0.1, mean=1.0)


def random_tensors(
    config: dict, seed: int = 0, dt_bias: tuple[float, float] = (-6.0, -2.0)
) -> dict[str, torch.Tensor]:
    """Draws every tensor of a model in float32, under its published name.

    Args:
        config: One of `TINY_CONFIGS`, or alike.
        seed: Of all draws.
        dt_bias: Range of dt_bias; (-12, -8) gives steps that a wrong clamp of dt would show.
    """
    draws = Draws(seed, dt_bias)
    original = "n_layer" in config
    hidden = config["d_model" if original else "hidden_size"]
    vocab = config["vocab_size"]
    if original:
        multiple = config["pad_vocab_size_multiple"]
        vocab = math.ceil(vocab / multiple) * multiple
    tied = config.get("tie_embeddings", True) if original else config.get("tie_word_embeddings")

    embeddings = f"backbone.embedding{'' if original else 's'}.weight"
    # A tied embedding is also the head: small, so that logits keep their magnitude.
    scale = 1.5 / math.sqrt(hidden) if tied else 1.0
    tensors = {embeddings: draws.normal(vocab, hidden, scale=scale)}
    tensors |= _layers(draws, "backbone.layers", layer_letters(config), config, hidden)
    tensors["backbone.norm_f.weight"] = draws.norm(hidden)
    if original and tied:
        tensors["lm_head.weight"] = tensors[embeddings].clone()
    elif not tied:
        tensors["lm_head.weight"] = draws.matrix(vocab, hidden)
    if config.get("num_nextn_predict_layers"):
        tensors |= _mtp(draws, config, hidden)
    return tensors


def write_checkpoint(
    folder: Path,
    config: dict,
    *,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    prefix: str = "backbone.",
    layer_names: dict[str, str] | None = None,
    stack: str | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
    dt_bias: tuple[float, float] = (-6.0, -2.0),
) -> dict[str, torch.Tensor]:
    """Writes `config.json` and weights into `folder`, which is made when absent.

    Args:
        folder: The checkpoint.
        config: Written as it is, but for the layers' spelling.
        seed: Of the random weights.
        dtype: Of the stored weights; `e_score_correction_bias` is always float32.
        shards: More than one gives numbered files and an index.
        prefix: Written in place of `backbone.`; `language_model.backbone.` also moves the head.
        layer_names: Spells the patterns as `layers_block_type` with these names.
        stack: Stacks each layer's routed experts; their names get this ending, "" or ".weight".
        tensors: Weights to write instead of random ones.
        dt_bias: As in `random_tensors`.

    Returns:
        The weights that were written, rounded to `dtype`, under their published names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(config)
    if layer_names is not None:
        for root in ("", "mtp_"):
            if letters := layer_letters(config, root):
                config[f"{root}layers_block_type"] = [layer_names[k] for k in letters]
            config.pop(f"{root}hybrid_override_pattern", None)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    if tensors is None:
        tensors = random_tensors(config, seed, dt_bias)
    stored = {
        name: t.to(torch.float32 if name.endswith("e_score_correction_bias") else DTYPES[dtype])
        for name, t in tensors.items()
    }
    written = stored if stack is None else stack_experts(stored, stack)
    save_shards(folder, {_respelled(n, prefix): t for n, t in written.items()}, shards)
    return stored


def stack_experts(tensors: dict[str, torch.Tensor], ending: str = "") -> dict[str, torch.Tensor]:
    """Returns the tensors with the routed experts of each layer stacked, [experts, out, in].

    Args:
        tensors: Under their published names, `...mixer.experts.7.up_proj.weight`.
        ending: Of the stacks' names: `...mixer.experts.up_proj` and this.
    """
    found, rows = {}, {}
    for name, tensor in tensors.items():
        if match := _EXPERT.match(name):
            rows.setdefault(f"{match[1]}.{match[3]}{ending}", {})[int(match[2])] = tensor
        else:
            found[name] = tensor
    return found | {n: torch.stack([t[e] for e in range(len(t))]) for n, t in rows.items()}


def save_shards(folder: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    """Saves tensors as `model.safetensors`, or as numbered shards with an index."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map, names = {}, list(tensors)
    for i in range(shards):
        part = {n: tensors[n] for n in names[i::shards]}
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _respelled(name: str, prefix: str) -> str:
    if name.startswith("backbone."):
        return prefix + name.removeprefix("backbone.")
    return "language_model." + name if prefix.startswith("language_model.") else name


def _layers(
    draws: Draws, root: str, letters: str, config: dict, hidden: int
) -> dict[str, torch.Tensor]:
    widths = config.get("intermediate_size")
    widths = iter(widths if isinstance(widths, list) else [widths] * len(letters))
    tensors = {}
    for i, letter in enumerate(letters):
        tensors[f"{root}.{i}.norm.weight"] = draws.norm(hidden)
        if letter == "M":
            mixer = _mamba2(draws, mamba_sizes(config), hidden)
        elif letter == "*":
            mixer = _attention(draws, config, hidden)
        elif letter == "-":
            mixer = _mlp(draws, next(widths), hidden)
        else:
            mixer = _moe(draws, config, hidden)
        tensors |= {f"{root}.{i}.mixer.{name}": t for name, t in mixer.items()}
    return tensors


def _mamba2(draws: Draws, sizes: dict, hidden: int) -> dict[str, torch.Tensor]:
    nheads = sizes["nheads"]
    d_inner = nheads * sizes["headdim"]
    conv_dim = d_inner + 2 * sizes["ngroups"] * sizes["dstate"]
    tensors = {
        "in_proj.weight": draws.matrix(d_inner + conv_dim + nheads, hidden),
        "conv1d.weight": draws.normal(conv_dim, 1, sizes["d_conv"], scale=0.3),
        "conv1d.bias": draws.normal(conv_dim, scale=0.1),
        "A_log": draws.uniform(nheads, 1.0, 16.0).log(),
        "D": draws.uniform(nheads, 0.5, 1.5),
        "dt_bias": draws.uniform(nheads, *draws.dt_bias),
        "norm.weight": draws.norm(d_inner),
        "out_proj.weight": draws.matrix(hidden, d_inner),
    }
    if not sizes["conv_bias"]:
        del tensors["conv1d.bias"]
    return tensors


def _attention(draws: Draws, config: dict, hidden: int) -> dict[str, torch.Tensor]:
    q_dim = config["num_attention_heads"] * config["head_dim"]
    kv_dim = config["num_key_value_heads"] * config["head_dim"]
    return {
        "q_proj.weight": draws.matrix(q_dim, hidden),
        "k_proj.weight": draws.matrix(kv_dim, hidden),
        "v_proj.weight": draws.matrix(kv_dim, hidden),
        "o_proj.weight": draws.matrix(hidden, q_dim),
    }


def _mlp(draws: Draws, width: int, size: int) -> dict[str, torch.Tensor]:
    return {
        "up_proj.weight": draws.matrix(width, size),
        "down_proj.weight": draws.matrix(size, width),
    }


def _moe(draws: Draws, config: dict, hidden: int) -> dict[str, torch.Tensor]:
    experts, latent = config["n_routed_experts"], config.get("moe_latent_size")
    tensors = {
        "gate.weight": draws.matrix(experts, hidden),
        "gate.e_score_correction_bias": draws.normal(experts, scale=0.1),
    }
    parts = {
        f"experts.{e}": (config["moe_intermediate_size"], latent or hidden) for e in range(experts)
    }
    parts["shared_experts"] = (config["moe_shared_expert_intermediate_size"], hidden)
    for part, (width, size) in parts.items():
        tensors |= {f"{part}.{name}": t for name, t in _mlp(draws, width, size).items()}
    if latent:
        tensors["fc1_latent_proj.weight"] = draws.matrix(latent, hidden)
        tensors["fc2_latent_proj.weight"] = draws.matrix(hidden, latent)
    return tensors


def _mtp(draws: Draws, config: dict, hidden: int) -> dict[str, torch.Tensor]:
    letters = layer_letters(config, "mtp_") or "*E"
    depths = config["num_nextn_predict_layers"]
    tensors = _layers(draws, "mtp.layers", letters * depths, config, hidden)
    for depth in range(depths):
        first, last = depth * len(letters), (depth + 1) * len(letters) - 1
        tensors[f"mtp.layers.{first}.enorm.weight"] = draws.norm(hidden)
        tensors[f"mtp.layers.{first}.hnorm.weight"] = draws.norm(hidden)
        tensors[f"mtp.layers.{first}.eh_proj.weight"] = draws.matrix(hidden, 2 * hidden)
        tensors[f"mtp.layers.{last}.final_layernorm.weight"] = draws.norm(hidden)
    return tensors
