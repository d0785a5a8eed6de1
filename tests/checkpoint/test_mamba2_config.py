"""Pure Mamba2 configs of both formats give the same kind of model; what cannot run is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.checkpoint.hf_config import HFConfig
from coachwhip.checkpoint.mamba2 import is_state_spaces, mamba2_hf_spec, state_spaces_spec
from coachwhip.errors import ConfigError
from coachwhip_graphs.spec import Mamba2Spec
from tests.checkpoint.parsed_configs import parsed, without
from tests.reference.tiny_configs import TINY_CONFIGS

TIED, UNTIED = TINY_CONFIGS["mamba2_g1_tied"], TINY_CONFIGS["mamba2_g4"]
ORIGINAL = TINY_CONFIGS["state_spaces"]


def original(**ssm_cfg: object) -> dict:
    return ORIGINAL | {"ssm_cfg": ORIGINAL["ssm_cfg"] | ssm_cfg}


def test_tied_model():
    spec = mamba2_hf_spec(parsed(TIED))
    assert spec.pattern == "MMM"
    assert spec.mamba == Mamba2Spec(12, 16, 32, 1, 4)
    assert (spec.tie_embeddings, spec.residual_fp32) == (True, True)
    assert (spec.model_type, spec.attention, spec.max_position_embeddings) == ("mamba2", None, None)


def test_untied_model_with_groups():
    spec = mamba2_hf_spec(parsed(UNTIED))
    assert spec.mamba.ngroups == 4
    assert not spec.tie_embeddings


def test_defaults_of_the_format():
    bare = without(TIED, "tie_word_embeddings", "residual_in_fp32", "conv_kernel", "expand",
                   "hidden_act", "layer_norm_epsilon", "time_step_limit")  # fmt: skip
    spec = mamba2_hf_spec(parsed(bare))
    assert (spec.tie_embeddings, spec.residual_fp32) == (False, True)
    assert (spec.mamba.d_conv, spec.mamba.dt_limit, spec.norm_eps) == (4, (0.0, math.inf), 1e-5)


def test_the_residual_stream_may_have_the_model_dtype():
    assert not mamba2_hf_spec(parsed(TIED | {"residual_in_fp32": False})).residual_fp32


def test_a_finite_limit_and_a_fractional_expand_are_kept():
    spec = mamba2_hf_spec(parsed(TIED | {"time_step_limit": [0.01, 0.5], "expand": 2.0}))
    assert spec.mamba.dt_limit == (0.01, 0.5)


def test_keys_without_effect_are_warnings():
    config = parsed(TIED | {"norm_before_gate": True, "rms_norm": False})
    mamba2_hf_spec(config)
    assert [w.split(" ")[0] for w in config.warnings] == ["norm_before_gate", "rms_norm"]


@pytest.mark.parametrize(
    "changes, named, allowed",
    [
        ({"use_bias": True}, "use_bias is true", "false"),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"', '"silu"'),
        ({"expand": 3}, "expand is 3", "num_heads * head_dim / hidden_size = 12 * 16 / 96"),
        ({"expand": "2"}, 'expand is "2"', "12 * 16 / 96"),
        ({"expand": 0.01}, "expand is 0.01", "12 * 16 / 96"),
        ({"n_groups": 5}, "n_groups is 5", "a divisor of num_heads = 12"),
        ({"head_dim": 8, "num_heads": 24}, "head_dim is 8", "a multiple of 16"),
        ({"state_size": 288}, "state_size is 288", "at most 256"),
        ({"head_dim": 288, "num_heads": 2, "expand": 6}, "head_dim is 288", "at most 256"),
        (
            {"head_dim": 192, "num_heads": 1, "state_size": 256},
            "head_dim is 192",
            "at most 128 with state_size = 256",
        ),
        ({"state_size": 17}, "state_size is 17", "a multiple of 16"),
        ({"conv_kernel": 8}, "conv_kernel is 8", "from 2 to 4"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0", "an integer from 1"),
        ({"num_hidden_layers": 100_000}, "num_hidden_layers is 100000", "at most 4096"),
        ({"num_heads": None}, "num_heads is null", "given"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1", "true or false"),
        ({"residual_in_fp32": "no"}, 'residual_in_fp32 is "no"', "true or false"),
    ],
)
def test_refusals_name_key_value_and_limit(changes: dict, named: str, allowed: str):
    with pytest.raises(ConfigError) as caught:
        mamba2_hf_spec(parsed(TIED | changes))
    assert str(caught.value).startswith(f"config.json: {named}")
    assert allowed in str(caught.value)


def test_original_format_is_recognised_by_its_keys():
    assert is_state_spaces(parsed(ORIGINAL))
    assert not is_state_spaces(parsed(TIED))
    assert not is_state_spaces(parsed(ORIGINAL | {"model_type": "mamba2"}))


def test_original_format_is_the_same_model():
    assert state_spaces_spec(parsed(ORIGINAL)) == mamba2_hf_spec(parsed(TIED))


@pytest.mark.parametrize(
    "vocab, multiple, rows",
    [(50277, 16, 50288), (50288, 16, 50288), (50277, None, 50280), (5, 1, 5)],
)
def test_vocabulary_is_rounded_up(vocab: int, multiple: int | None, rows: int):
    config = ORIGINAL | {"vocab_size": vocab, "pad_vocab_size_multiple": multiple}
    assert state_spaces_spec(parsed(config)).vocab_size == rows


def test_original_defaults():
    config = without(ORIGINAL, "tie_embeddings", "residual_in_fp32", "attn_layer_idx", "attn_cfg")
    spec = state_spaces_spec(parsed(config | {"d_model": 768, "ssm_cfg": {"layer": "Mamba2"}}))
    assert spec.mamba == Mamba2Spec(24, 64, 128, 1, 4)
    assert (spec.tie_embeddings, spec.residual_fp32, spec.norm_eps) == (True, True, 1e-5)


def test_original_mixer_options():
    changes = {"ngroups": 3, "d_conv": 3, "dt_limit": [0.0, 0.5], "expand": 4, "chunk_size": 64}
    spec = state_spaces_spec(parsed(original(**changes)))
    assert spec.mamba == Mamba2Spec(24, 16, 32, 3, 3, (0.0, 0.5))


@pytest.mark.parametrize(
    "config, named",
    [
        (original(layer="Mamba1"), 'ssm_cfg.layer is "Mamba1"'),
        (ORIGINAL | {"ssm_cfg": {}}, 'ssm_cfg.layer is "Mamba1"'),
        (ORIGINAL | {"ssm_cfg": "Mamba2"}, 'ssm_cfg is "Mamba2"'),
        (ORIGINAL | {"attn_layer_idx": [9, 18]}, "attn_layer_idx is [9, 18]"),
        (ORIGINAL | {"d_intermediate": 512}, "d_intermediate is 512"),
        (ORIGINAL | {"rms_norm": False}, "rms_norm is false"),
        (original(d_ssm=64), "ssm_cfg.d_ssm is 64"),
        (original(D_has_hdim=True), "ssm_cfg.D_has_hdim is true"),
        (original(bias=True), "ssm_cfg.bias is true"),
        (original(rmsnorm=False), "ssm_cfg.rmsnorm is false"),
        (original(norm_before_gate=True), "ssm_cfg.norm_before_gate is true"),
        (original(activation="gelu"), 'ssm_cfg.activation is "gelu"'),
        (original(headdim=80), "ssm_cfg.expand is 2"),
        (original(expand=1.3), "ssm_cfg.expand is 1.3"),
        (original(ngroups=5), "ssm_cfg.ngroups is 5"),
        (original(d_state=512), "ssm_cfg.d_state is 512"),
        (original(headdim=8), "ssm_cfg.headdim is 8"),
        (original(headdim=192, d_state=256), "ssm_cfg.headdim is 192"),
        (original(d_conv=5), "ssm_cfg.d_conv is 5"),
        (ORIGINAL | {"n_layer": -1}, "n_layer is -1"),
        (ORIGINAL | {"d_model": "96"}, 'd_model is "96"'),
    ],
)
def test_original_refusals_name_key_and_value(config: dict, named: str):
    with pytest.raises(ConfigError) as caught:
        state_spaces_spec(parsed(config))
    assert str(caught.value).startswith(f"config.json: {named}, but must be")
    assert str(caught.value).isprintable()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
ORIGINAL_KEYS = ("layer", "d_state", "headdim", "ngroups", "expand", "d_conv", "dt_limit", "bias",
                 "activation", "d_ssm", "rmsnorm", "D_has_hdim", "norm_before_gate")  # fmt: skip


@settings(deadline=None)
@given(
    st.sampled_from([*TIED, "rms_norm"]), st.sampled_from([*ORIGINAL, *ORIGINAL_KEYS]), json_values
)
def test_any_value_of_any_key_gives_a_model_or_a_config_error(key: str, other: str, value: object):
    changed = original(**{other: value}) if other in ORIGINAL_KEYS else ORIGINAL | {other: value}
    for read, config in ((mamba2_hf_spec, TIED | {key: value}), (state_spaces_spec, changed)):
        try:
            spec = read(HFConfig(config, Path("config.json")))
        except ConfigError as error:
            assert str(error).isprintable()
        else:
            assert spec.mamba.nheads >= 1
