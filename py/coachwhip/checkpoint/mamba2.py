"""Reads the configs of pure Mamba2 models: transformers' `mamba2` and state-spaces' own."""

from __future__ import annotations

from coachwhip_graphs.spec import LayerKind, LayerSpec, ModelSpec

from .hf_config import HFConfig
from .layer_pattern import MOST_LAYERS
from .shapes import mamba2_spec

STATE_SPACES_TOKEN_ID = 0
"""`<|endoftext|>` of the GPT-NeoX tokenizer, bos and eos of every state-spaces model."""


def mamba2_hf_spec(config: HFConfig) -> ModelSpec:
    """Returns the model that a `model_type: mamba2` config describes.

    `rms_norm` and `norm_before_gate` do nothing in this format: the mixer always multiplies by
    silu(z) first and normalises after.

    Raises:
        ConfigError: A key is missing, malformed, or asks for what is not supported; also when
            expand * hidden_size != num_heads * head_dim.
    """
    config.require_false("use_bias", "projections with a bias are not supported")
    config.require_one_of("hidden_act", ("silu", "swish"), "silu")
    if config.get("norm_before_gate", default=False):
        config.warnings.append("norm_before_gate is ignored: a mamba2 model gates before its norm")
    if config.get("rms_norm", default=True) is False:
        config.warnings.append("rms_norm is ignored: a mamba2 model always has its gated norm")
    hidden = config.size("hidden_size")
    nheads, headdim = config.named_size("num_heads"), config.named_size("head_dim")
    expand = config.get("expand", default=2)
    if _product(expand, hidden) != nheads[1] * headdim[1]:
        raise config.error(
            "expand",
            expand,
            f"num_heads * head_dim / hidden_size = {nheads[1]} * {headdim[1]} / {hidden}",
            "make the four sizes agree",
        )
    return ModelSpec(
        model_type="mamba2",
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden,
        layers=_layers(config, "num_hidden_layers"),
        norm_eps=config.eps("layer_norm_epsilon", default=1e-5),
        mamba=mamba2_spec(
            config,
            nheads=nheads,
            headdim=headdim,
            dstate=config.named_size("state_size"),
            ngroups=config.named_size("n_groups"),
            d_conv=config.named_size("conv_kernel", default=4),
            dt_limit=config.dt_limit("time_step_limit"),
        ),
        attention=None,
        tie_embeddings=config.flag("tie_word_embeddings", default=False),
        residual_fp32=config.flag("residual_in_fp32", default=True),
        max_position_embeddings=config.size("max_position_embeddings", default=None),
    )


def is_state_spaces(config: HFConfig) -> bool:
    """Says whether this is state-spaces' own format, which has no `model_type`."""
    return not config.has("model_type") and config.has("d_model") and config.has("n_layer")


def state_spaces_spec(config: HFConfig) -> ModelSpec:
    """Returns the model that a config of the state-spaces/mamba repository describes.

    `ssm_cfg` holds the mixer's sizes, with the defaults of its `Mamba2` class; the embedding has
    `vocab_size` rounded up to `pad_vocab_size_multiple` rows.

    Raises:
        ConfigError: A key is missing, malformed, or asks for what is not supported: another
            layer than Mamba2, attention or MLP layers, d_ssm, D_has_hdim, norm_before_gate.
    """
    _refuse_unsupported(config)
    ssm = config.nested("ssm_cfg")
    hidden = config.size("d_model")
    expand = ssm.get("expand", default=2)
    headdim = ssm.named_size("headdim", default=64)
    d_inner = _product(expand, hidden)
    if d_inner is None or d_inner % headdim[1]:
        raise ssm.error(
            "expand",
            expand,
            f"such that expand * d_model is a multiple of headdim = {headdim[1]}",
            "make the three sizes agree",
        )
    rows, multiple = config.size("vocab_size"), config.size("pad_vocab_size_multiple", default=8)
    return ModelSpec(
        model_type="mamba2",
        vocab_size=-(-rows // multiple) * multiple,
        hidden_size=hidden,
        layers=_layers(config, "n_layer"),
        norm_eps=1e-5,
        mamba=mamba2_spec(
            ssm,
            nheads=("nheads", d_inner // headdim[1]),
            headdim=headdim,
            dstate=ssm.named_size("d_state", default=128),
            ngroups=ssm.named_size("ngroups", default=1),
            d_conv=ssm.named_size("d_conv", default=4),
            dt_limit=ssm.dt_limit("dt_limit"),
        ),
        attention=None,
        tie_embeddings=config.flag("tie_embeddings", default=True),
        residual_fp32=config.flag("residual_in_fp32", default=True),
    )


def _refuse_unsupported(config: HFConfig) -> None:
    """Raises for every option of a state-spaces config that changes the model's arithmetic."""
    ssm = config.nested("ssm_cfg")
    layer = ssm.get("layer", default="Mamba1")
    if layer != "Mamba2":
        raise ssm.error("layer", layer, '"Mamba2"', "Mamba1 is not supported", "unsupported")
    for owner, key, only, reason in (
        (config, "attn_layer_idx", [], "attention layers of this format are not supported"),
        (config, "d_intermediate", 0, "MLP layers of this format are not supported"),
        (config, "rms_norm", True, "LayerNorm is not supported"),
        (ssm, "bias", False, "projections with a bias are not supported"),
        (ssm, "rmsnorm", True, "a mixer without its gated norm is not supported"),
        (ssm, "norm_before_gate", False, "only gating before the norm is supported"),
        (ssm, "D_has_hdim", False, "D has one value for each head"),
        (ssm, "d_ssm", None, "the extra gated MLP of d_ssm < d_inner is not supported"),
        (ssm, "activation", "silu", "no other activation is supported"),
    ):
        got = owner.get(key, default=only)
        same = got in ("silu", "swish") if key == "activation" else got == only
        if not same or isinstance(got, bool) != isinstance(only, bool):
            allowed = "absent" if only is None else _spelled(only)
            raise owner.error(key, got, allowed, reason, "unsupported")


def _spelled(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)


def _product(factor: object, size: int) -> int | None:
    """Returns factor * size when the factor is a positive number and the product whole."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 1024:
        return None
    product = factor * size
    return int(product) if product == int(product) and product >= 1 else None


def _layers(config: HFConfig, key: str) -> tuple[LayerSpec, ...]:
    count = config.size(key)
    if count > MOST_LAYERS:
        raise config.error(key, count, f"at most {MOST_LAYERS}", "correct the size")
    return (LayerSpec(LayerKind.MAMBA2),) * count
