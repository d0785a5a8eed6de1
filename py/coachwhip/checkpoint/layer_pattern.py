"""Reads the order of a NemotronH model's layers, in any of its three spellings."""

from __future__ import annotations

from coachwhip_graphs.spec import LayerKind

from .hf_config import HFConfig

MOST_LAYERS = 4096

_LIST_NAMES = {
    "mamba": LayerKind.MAMBA2,
    "linear_attention": LayerKind.MAMBA2,
    "attention": LayerKind.ATTENTION,
    "full_attention": LayerKind.ATTENTION,
    "mlp": LayerKind.MLP,
    "moe": LayerKind.MOE,
}
_LETTERS = {kind.value: kind for kind in LayerKind}


def layer_pattern(config: HFConfig) -> tuple[LayerKind, ...]:
    """Returns the kind of every layer.

    `layers_block_type` (a list of `mamba`, `attention`, `mlp`, `moe`, or since transformers 5
    `linear_attention`, `full_attention`) wins over `hybrid_override_pattern` (a string of `M`,
    `*`, `-`, `E`). `num_hidden_layers` is not read: the layers are what the pattern says.

    Raises:
        ConfigError: Neither key is given; the pattern is empty or holds an unknown kind.
    """
    if config.has("layers_block_type"):
        key, names, allowed = (
            "layers_block_type",
            _LIST_NAMES,
            "a list of " + ", ".join(_LIST_NAMES),
        )
        value = config.get(key)
        right_type = isinstance(value, list)
    else:
        key, names = "hybrid_override_pattern", _LETTERS
        allowed = "a string of M, *, - and E"
        value = config.get(key)
        right_type = isinstance(value, str)
    if not right_type or not 1 <= len(value) <= MOST_LAYERS:
        raise config.error(
            key, value, f"{allowed}, 1 to {MOST_LAYERS} of them", "give every layer's kind"
        )
    for i, name in enumerate(value):
        if not isinstance(name, str) or name not in names:
            raise config.error(f"{key}[{i}]", name, allowed, "no other layer kind is supported")
    if config.has("layers_block_type") and config.has("hybrid_override_pattern"):
        _note_disagreement(config, value)
    return tuple(names[name] for name in value)


def _note_disagreement(config: HFConfig, listed: list[str]) -> None:
    if config.values["hybrid_override_pattern"] != "".join(_LIST_NAMES[k].value for k in listed):
        config.warnings.append("hybrid_override_pattern is ignored: layers_block_type differs")
