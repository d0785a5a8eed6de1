"""Reads a NemotronH config: Mamba2, attention without positions, relu^2 MLP and MoE layers."""

from __future__ import annotations

from coachwhip_graphs.spec import AttentionSpec, LayerKind, LayerSpec, Mamba2Spec, ModelSpec

from .hf_config import HFConfig
from .layer_pattern import layer_pattern
from .moe import moe_spec
from .mtp import mtp_kinds
from .shapes import attention_spec, mamba2_spec


def nemotron_h_spec(config: HFConfig) -> ModelSpec:
    """Returns the model that a `model_type: nemotron_h` config describes.

    `expand`, `chunk_size`, `num_hidden_layers` and `mamba_proj_bias` change nothing: d_inner is
    mamba_num_heads * mamba_head_dim, chunking does not change results, the pattern gives the
    layers, and `use_bias` alone rules the projections' biases.

    Raises:
        ConfigError: A key is missing, malformed, or asks for what is not supported.
    """
    _refuse_unsupported(config)
    kinds, mtp = layer_pattern(config), mtp_kinds(config)
    used = {*kinds, *mtp}
    widths = iter(_mlp_widths(config, kinds.count(LayerKind.MLP)))
    mtp_width = _mtp_mlp_width(config) if LayerKind.MLP in mtp else None
    return ModelSpec(
        model_type="nemotron_h",
        vocab_size=config.size("vocab_size"),
        hidden_size=config.size("hidden_size"),
        layers=tuple(
            LayerSpec(kind, next(widths) if kind == LayerKind.MLP else None) for kind in kinds
        ),
        norm_eps=config.eps("layer_norm_epsilon", "rms_norm_eps", "norm_eps", default=1e-5),
        mamba=_mamba(config) if LayerKind.MAMBA2 in used else None,
        attention=_attention(config) if LayerKind.ATTENTION in used else None,
        moe=moe_spec(config) if LayerKind.MOE in used else None,
        mtp_layers=tuple(
            LayerSpec(kind, mtp_width if kind == LayerKind.MLP else None) for kind in mtp
        ),
        max_position_embeddings=config.size("max_position_embeddings", default=None),
    )


def _refuse_unsupported(config: HFConfig) -> None:
    for key in ("use_bias", "mlp_bias", "attention_bias"):
        config.require_false(key, "projections with a bias are not supported")
    config.require_false("residual_in_fp32", "the residual stream has the model's dtype")
    config.require_false("tie_word_embeddings", "NemotronH has an lm_head of its own")
    window = config.get("sliding_window", default=None)
    if window is not None:
        raise config.error(
            "sliding_window", window, "null", "sliding windows are not supported", "unsupported"
        )
    config.require_one_of("mlp_hidden_act", ("relu2",), "relu2")
    config.require_one_of("mamba_hidden_act", ("silu", "swish"), "silu")


def _mamba(config: HFConfig) -> Mamba2Spec:
    return mamba2_spec(
        config,
        nheads=config.named_size("mamba_num_heads"),
        headdim=config.named_size("mamba_head_dim"),
        dstate=config.named_size("ssm_state_size"),
        ngroups=config.named_size("n_groups", "mamba_n_groups"),
        d_conv=config.named_size("conv_kernel", "mamba_d_conv", default=4),
        dt_limit=config.dt_limit("time_step_limit", "mamba_dt_limit"),
    )


def _attention(config: HFConfig) -> AttentionSpec:
    heads = config.named_size("num_attention_heads")
    return attention_spec(
        config,
        num_heads=heads,
        num_kv_heads=config.named_size("num_key_value_heads", default=heads[1]),
        head_dim=config.named_size("head_dim", "attention_head_dim"),
    )


def _mlp_widths(config: HFConfig, count: int) -> list[int]:
    """Returns the MLP layers' widths from one size for all, or a list with one each."""
    if not count:
        return []
    value = config.get("intermediate_size")
    widths = value if isinstance(value, list) else [value]
    if len(widths) not in (1, count):
        raise config.error(
            "intermediate_size",
            value,
            f"one size, or a list of {count}, one for each MLP layer",
            "make the list as long as the pattern has MLP layers",
        )
    return [config.checked_size("intermediate_size", width) for width in widths] * (
        count // len(widths)
    )


def _mtp_mlp_width(config: HFConfig) -> int:
    """Returns the width of the MLP layers of the multi-token-prediction head."""
    value = config.get("intermediate_size")
    widths = value if isinstance(value, list) else [value]
    if not widths or any(width != widths[0] for width in widths):
        raise config.error(
            "intermediate_size",
            value,
            "one size when the multi-token-prediction head has an MLP layer",
            "the list does not say which width is the head's",
        )
    return config.checked_size("intermediate_size", widths[0])
