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


def layer_pattern(
    config: HFConfig, prefix: str = "", default: tuple[LayerKind, ...] | None = None
) -> tuple[LayerKind, ...]:
    """Returns the kind of every layer.

    `layers_block_type` (a list of `mamba`, `attention`, `mlp`, `moe`, or since transformers 5
    `linear_attention`, `full_attention`) wins over `hybrid_override_pattern` (a string of `M`,
    `*`, `-`, `E`). `num_hidden_layers` is not read: the layers are what the pattern says.

    Args:
        config: The config.
        prefix: Of both keys: `mtp_` for the layers of the multi-token-prediction head.
        default: The kinds when neither key is given; None when one must be.

    Raises:
        ConfigError: Neither key is given; the pattern is empty or holds an unknown kind.
    """
    key, value = pattern_key(config, prefix, required=default is None)
    if value is None:
        return default
    if key.endswith("layers_block_type"):
        names, kind, allowed = _LIST_NAMES, list, "a list of " + ", ".join(_LIST_NAMES)
    else:
        names, kind, allowed = _LETTERS, str, "a string of M, *, - and E"
    if not isinstance(value, kind) or not 1 <= len(value) <= MOST_LAYERS:
        raise config.error(
            key, value, f"{allowed}, 1 to {MOST_LAYERS} of them", "give every layer's kind"
        )
    for i, name in enumerate(value):
        if not isinstance(name, str) or name not in names:
            raise config.error(f"{key}[{i}]", name, allowed, "no other layer kind is supported")
    kinds = tuple(names[name] for name in value)
    _note_disagreement(config, prefix, kinds)
    return kinds


def pattern_key(
    config: HFConfig, prefix: str = "", required: bool = True
) -> tuple[str, object | None]:
    """Returns the key that gives the layers, and its value; None when it is neither required nor
    there."""
    key = f"{prefix}layers_block_type"
    if config.has(key):
        return key, config.get(key)
    key = f"{prefix}hybrid_override_pattern"
    return key, config.get(key) if required else config.get(key, default=None)


def _note_disagreement(config: HFConfig, prefix: str, kinds: tuple[LayerKind, ...]) -> None:
    listed, string = f"{prefix}layers_block_type", f"{prefix}hybrid_override_pattern"
    if not (config.has(listed) and config.has(string)):
        return
    if config.values[string] != "".join(kind.value for kind in kinds):
        config.warnings.append(f"{string} is ignored: {listed} differs")
