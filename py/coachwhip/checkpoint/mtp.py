"""Reads the multi-token-prediction keys of a NemotronH config."""

from __future__ import annotations

from coachwhip_graphs.spec import LayerKind

from .hf_config import HFConfig
from .layer_pattern import layer_pattern, pattern_key

DEFAULT_KINDS = (LayerKind.ATTENTION, LayerKind.MOE)
"""Layers of a depth when the config promises a head and does not list them."""

SUPPORTED_KINDS = (LayerKind.ATTENTION, LayerKind.MOE, LayerKind.MLP)


def mtp_kinds(config: HFConfig) -> tuple[LayerKind, ...]:
    """Returns the kinds of the head's layers, none when the config promises no head.

    Only one depth can be stored; it is used again for every further token.

    Raises:
        ConfigError: More than one depth; a Mamba2 layer; a malformed pattern.
    """
    depths = config.count("num_nextn_predict_layers", default=0)
    if not depths:
        return ()
    if depths > 1:
        raise config.error(
            "num_nextn_predict_layers",
            depths,
            "0 or 1",
            "one stored depth predicts any number of tokens, several are not supported",
            "unsupported",
        )
    kinds = layer_pattern(config, "mtp_", default=DEFAULT_KINDS)
    for i, kind in enumerate(kinds):
        if kind not in SUPPORTED_KINDS:
            key, value = pattern_key(config, "mtp_")
            raise config.error(
                f"{key}[{i}]",
                value[i],
                "an attention, MoE or MLP layer",
                "the multi-token-prediction head has no state of a Mamba2 layer",
                "unsupported",
            )
    return kinds
