"""Every spelling of a NemotronH config gives the same model; what cannot run is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coachwhip.checkpoint.hf_config import HFConfig
from coachwhip.checkpoint.json_file import parse_json_object
from coachwhip.checkpoint.nemotron_h import nemotron_h_spec
from coachwhip.errors import ConfigError
from coachwhip_graphs.spec import AttentionSpec, LayerKind, Mamba2Spec
from tests.checkpoint.parsed_configs import parsed, spec_of, without
from tests.reference.checkpoints import LIST_NAMES, LIST_NAMES_5
from tests.reference.tiny_configs import TINY_CONFIGS

DENSE = TINY_CONFIGS["nemotron_dense"]


def test_dense_model():
    spec = spec_of(DENSE)
    assert spec.pattern == "M-M*-M-"
    assert spec.mamba == Mamba2Spec(12, 16, 32, 4, 4)
    assert (spec.mamba.d_inner, spec.mamba.conv_dim, spec.mamba.in_proj_dim) == (192, 448, 652)
    assert spec.attention == AttentionSpec(6, 2, 32, 32**-0.5)
    assert (spec.vocab_size, spec.hidden_size, spec.norm_eps) == (512, 128, 1e-5)
    assert [layer.intermediate_size for layer in spec.layers] == [
        None, 200, None, None, 200, None, 200,
    ]  # fmt: skip
    assert (spec.tie_embeddings, spec.residual_fp32) == (False, False)
    assert spec.max_position_embeddings == 2048


@pytest.mark.parametrize("names", [LIST_NAMES, LIST_NAMES_5])
def test_list_spellings_of_the_layers(names: dict[str, str]):
    listed = without(DENSE, "hybrid_override_pattern") | {
        "layers_block_type": [names[letter] for letter in "M-M*-M-"]
    }
    assert spec_of(listed) == spec_of(DENSE)


def test_the_list_wins_over_the_string_and_says_so():
    config = parsed(DENSE | {"layers_block_type": ["mamba", "mlp"], "num_hidden_layers": 52})
    assert nemotron_h_spec(config).pattern == "M-"
    assert config.warnings == ["hybrid_override_pattern is ignored: layers_block_type differs"]


def test_two_equal_spellings_are_no_warning():
    names = [LIST_NAMES[letter] for letter in "M-M*-M-"]
    config = parsed(DENSE | {"layers_block_type": names})
    nemotron_h_spec(config)
    assert config.warnings == []


@pytest.mark.parametrize(
    "key, alias",
    [
        ("head_dim", "attention_head_dim"),
        ("n_groups", "mamba_n_groups"),
        ("conv_kernel", "mamba_d_conv"),
        ("time_step_limit", "mamba_dt_limit"),
        ("layer_norm_epsilon", "rms_norm_eps"),
        ("layer_norm_epsilon", "norm_eps"),
    ],
)
def test_older_keys(key: str, alias: str):
    changed = DENSE | {"time_step_limit": [0.0, 0.5], "conv_kernel": 3, "layer_norm_epsilon": 1e-6}
    renamed = without(changed, key) | {alias: changed[key]}
    assert spec_of(renamed) == spec_of(changed)


def test_an_alias_that_differs_is_ignored_with_a_warning():
    config = parsed(DENSE | {"attention_head_dim": 64})
    assert nemotron_h_spec(config).attention.head_dim == 32
    assert config.warnings == ["attention_head_dim is ignored: it differs from head_dim"]


@pytest.mark.parametrize(
    "spelled",
    ["[0.0, Infinity]", '[0, {"__float__": "Infinity"}]', '["0.0", "Infinity"]', '["0", "inf"]',
     "null"],
)  # fmt: skip
def test_spellings_of_no_limit(spelled: str):
    text = json.dumps(DENSE | {"time_step_limit": "HERE"}).replace('"HERE"', spelled)
    config = HFConfig(parse_json_object(text.encode(), Path("c")), Path("c"))
    assert nemotron_h_spec(config).mamba.dt_limit == (0.0, math.inf)


def test_a_finite_limit_is_kept_and_init_only_keys_are_not_read():
    changed = {"time_step_limit": [0.01, 0.5], "time_step_min": "x", "time_step_max": None}
    spec = spec_of(DENSE | changed)
    assert spec.mamba.dt_limit == (0.01, 0.5)
    assert spec.mamba.clamps_dt


def test_null_key_value_heads_mean_one_for_each_query_head():
    assert spec_of(DENSE | {"num_key_value_heads": None}).attention.num_kv_heads == 6


@pytest.mark.parametrize("widths", [[200], [200, 200, 200]])
def test_a_list_of_widths(widths: list[int]):
    assert spec_of(DENSE | {"intermediate_size": widths}) == spec_of(DENSE)


def test_each_mlp_layer_may_have_its_width():
    spec = spec_of(TINY_CONFIGS["nemotron_repeats"])
    assert spec.pattern == "MM--**M-"
    assert [s.intermediate_size for s in spec.layers if s.kind == LayerKind.MLP] == [200, 72, 136]


def test_models_without_mamba_or_attention_need_no_such_keys():
    only_mlp = without(DENSE, "mamba_num_heads", "num_attention_heads", "head_dim")
    spec = spec_of(only_mlp | {"hybrid_override_pattern": "--"})
    assert spec.mamba is None
    assert spec.attention is None
    only_mamba = without(DENSE, "num_attention_heads", "intermediate_size")
    assert spec_of(only_mamba | {"hybrid_override_pattern": "M"}).attention is None


def test_keys_that_change_nothing_are_free():
    free = {"expand": 7, "chunk_size": 256, "mamba_proj_bias": True, "num_hidden_layers": 3}
    assert spec_of(DENSE | free) == spec_of(DENSE)


@pytest.mark.parametrize(
    "heads, headdim, dstate, in_proj_dim, conv_dim",
    [
        (112, 64, 128, 16496, 9216),  # Nemotron-H-4B
        (128, 64, 128, 18560, 10240),  # Nemotron-H-8B
        (256, 64, 256, 37120, 20480),  # Nemotron-H-47B and 56B
        (128, 80, 128, 22656, 12288),  # Nano-9B-v2 and 12B-v2
        (96, 80, 128, 17504, 9728),  # Nemotron-3-Nano-4B
    ],
)
def test_published_sizes_are_accepted(heads, headdim, dstate, in_proj_dim, conv_dim):
    changes = {"mamba_num_heads": heads, "mamba_head_dim": headdim, "ssm_state_size": dstate}
    spec = spec_of(DENSE | changes | {"n_groups": 8, "head_dim": 128})
    assert (spec.mamba.in_proj_dim, spec.mamba.conv_dim) == (in_proj_dim, conv_dim)


REFUSED = [
    ({"use_bias": True}, "use_bias is true", "false"),
    ({"mlp_bias": True}, "mlp_bias is true", "false"),
    ({"attention_bias": True}, "attention_bias is true", "false"),
    ({"use_bias": "yes"}, 'use_bias is "yes"', "true or false"),
    ({"residual_in_fp32": True}, "residual_in_fp32 is true", "false"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings is true", "false"),
    ({"sliding_window": 4096}, "sliding_window is 4096", "null"),
    ({"mlp_hidden_act": "silu"}, 'mlp_hidden_act is "silu"', '"relu2"'),
    ({"mlp_hidden_act": None, "mamba_hidden_act": "gelu"}, 'mamba_hidden_act is "gelu"', "silu"),
    ({"mamba_hidden_act": ["silu"]}, 'mamba_hidden_act is ["silu"]', "silu"),
    ({"hybrid_override_pattern": "MEM"}, "n_routed_experts is missing", "given"),
    ({"layers_block_type": ["mamba", "moe"]}, "n_routed_experts is missing", "given"),
    ({"hybrid_override_pattern": "MXM"}, 'hybrid_override_pattern[1] is "X"', "M, *, - and E"),
    ({"hybrid_override_pattern": ""}, 'hybrid_override_pattern is ""', "1 to"),
    ({"hybrid_override_pattern": 3}, "hybrid_override_pattern is 3", "a string"),
    ({"hybrid_override_pattern": None}, "hybrid_override_pattern is null", "given"),
    ({"hybrid_override_pattern": "M" * 5000}, "hybrid_override_pattern is", "4096"),
    ({"layers_block_type": []}, "layers_block_type is []", "a list of mamba"),
    ({"layers_block_type": "MM"}, 'layers_block_type is "MM"', "a list of mamba"),
    ({"layers_block_type": ["mamba", 3]}, "layers_block_type[1] is 3", "full_attention"),
    ({"layers_block_type": ["mamba", ["mlp"]]}, 'layers_block_type[1] is ["mlp"]', "a list of"),
    ({"n_groups": 5}, "n_groups is 5", "a divisor of mamba_num_heads = 12"),
    ({"num_key_value_heads": 4}, "num_key_value_heads is 4", "num_attention_heads = 6"),
    ({"mamba_head_dim": 24}, "mamba_head_dim is 24", "a multiple of 16"),
    ({"ssm_state_size": 40}, "ssm_state_size is 40", "a multiple of 16"),
    ({"ssm_state_size": 272}, "ssm_state_size is 272", "at most 256"),
    ({"mamba_head_dim": 272}, "mamba_head_dim is 272", "at most 256"),
    (
        {"mamba_head_dim": 144, "ssm_state_size": 256},
        "mamba_head_dim is 144",
        "at most 128 with ssm_state_size = 256",
    ),
    ({"conv_kernel": 1}, "conv_kernel is 1", "from 2 to 4"),
    ({"conv_kernel": 5}, "conv_kernel is 5", "from 2 to 4"),
    ({"head_dim": 40}, "head_dim is 40", "a multiple of 16"),
    ({"head_dim": None, "attention_head_dim": 40}, "attention_head_dim is 40", "a multiple of 16"),
    ({"hidden_size": 0}, "hidden_size is 0", "an integer from 1"),
    ({"hidden_size": -128}, "hidden_size is -128", "an integer from 1"),
    ({"hidden_size": 128.0}, "hidden_size is 128.0", "an integer from 1"),
    ({"hidden_size": "128"}, 'hidden_size is "128"', "an integer from 1"),
    ({"hidden_size": True}, "hidden_size is true", "an integer from 1"),
    ({"vocab_size": 10**12}, "vocab_size is 1000000000000", "an integer from 1"),
    ({"vocab_size": None}, "vocab_size is null", "given"),
    ({"mamba_num_heads": 0}, "mamba_num_heads is 0", "an integer from 1"),
    ({"max_position_embeddings": 0}, "max_position_embeddings is 0", "an integer from 1"),
    ({"intermediate_size": [200, 200]}, "intermediate_size is [200, 200]", "a list of 3"),
    ({"intermediate_size": [200, 0, 200]}, "intermediate_size is 0", "an integer from 1"),
    ({"intermediate_size": None}, "intermediate_size is null", "given"),
    ({"layer_norm_epsilon": 0}, "layer_norm_epsilon is 0", "between 0 and 1"),
    ({"layer_norm_epsilon": "tiny"}, 'layer_norm_epsilon is "tiny"', "between 0 and 1"),
    ({"time_step_limit": [0.5, 0.1]}, "time_step_limit is [0.5, 0.1]", "low < high"),
    ({"time_step_limit": [-1, 1]}, "time_step_limit is [-1, 1]", "0 <= low"),
    ({"time_step_limit": [0.0]}, "time_step_limit is [0.0]", "two numbers"),
    ({"time_step_limit": [0.0, math.nan]}, "time_step_limit is [0.0, NaN]", "two numbers"),
    ({"time_step_limit": 3}, "time_step_limit is 3", "two numbers"),
]


@pytest.mark.parametrize("changes, named, allowed", REFUSED)
def test_refusals_name_key_value_and_limit(changes: dict, named: str, allowed: str):
    with pytest.raises(ConfigError) as caught:
        spec_of(DENSE | changes)
    text = str(caught.value)
    assert text.startswith(f"config.json: {named}")
    assert allowed in text
    assert text.isprintable()


near_a_multiple = st.builds(
    lambda multiple, off: 16 * multiple + off, st.integers(0, 40), st.sampled_from([0, 0, 0, 8, 1])
)


@settings(deadline=None)
@given(
    nheads=st.integers(1, 300),
    headdim=near_a_multiple,
    dstate=near_a_multiple,
    ngroups=st.integers(1, 16),
    d_conv=st.integers(1, 6),
)
@example(nheads=256, headdim=128, dstate=256, ngroups=8, d_conv=4)
@example(nheads=256, headdim=256, dstate=128, ngroups=8, d_conv=2)
def test_a_mixer_is_accepted_when_and_only_when_the_ops_run_it(
    nheads: int, headdim: int, dstate: int, ngroups: int, d_conv: int
):
    """The limits here are those that `docs/kernels.md` states and `ops.py` checks."""
    runs = (
        nheads % ngroups == 0
        and all(size % 16 == 0 and 16 <= size <= 256 for size in (headdim, dstate))
        and headdim * dstate <= 32768
        and 2 <= d_conv <= 4
        and (nheads * headdim + 2 * ngroups * dstate) % 16 == 0  # channels of the convolution
        and nheads * headdim // ngroups % 16 == 0  # a group of the gated norm
    )
    config = DENSE | {
        "mamba_num_heads": nheads,
        "mamba_head_dim": headdim,
        "ssm_state_size": dstate,
        "n_groups": ngroups,
        "conv_kernel": d_conv,
    }
    if runs:
        assert spec_of(config).mamba == Mamba2Spec(nheads, headdim, dstate, ngroups, d_conv)
    else:
        with pytest.raises(ConfigError):
            spec_of(config)


@pytest.mark.parametrize(
    "key",
    ["vocab_size", "hidden_size", "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups",
     "num_attention_heads", "head_dim", "intermediate_size", "hybrid_override_pattern"],
)  # fmt: skip
def test_sizes_have_no_silent_default(key: str):
    with pytest.raises(ConfigError, match=f"{key} is missing, but must be given"):
        spec_of(without(DENSE, key))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(key=st.sampled_from([*sorted(DENSE), "layers_block_type", "norm_eps"]), value=json_values)
def test_any_value_of_any_key_gives_a_model_or_a_config_error(key: str, value: object):
    try:
        spec = nemotron_h_spec(HFConfig(DENSE | {key: value}, Path("config.json")))
    except ConfigError as error:
        assert str(error).isprintable()
    else:
        assert spec.layers
