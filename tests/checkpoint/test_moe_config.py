"""MoE layers and the multi-token-prediction head of a NemotronH config, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.checkpoint.hf_config import HFConfig
from coachwhip.checkpoint.nemotron_h import nemotron_h_spec
from coachwhip.errors import ConfigError
from coachwhip_graphs.spec import LayerKind, LayerSpec, MoeSpec
from tests.checkpoint.expert_configs import EXPERT_CONFIGS
from tests.checkpoint.parsed_configs import parsed, spec_of, without
from tests.reference.checkpoints import LIST_NAMES, LIST_NAMES_5
from tests.reference.tiny_configs import TINY_CONFIGS

DENSE = TINY_CONFIGS["nemotron_dense"]
MOE = TINY_CONFIGS["nemotron_moe"]
GROUPED = TINY_CONFIGS["nemotron_grouped_moe"]
MTP = TINY_CONFIGS["nemotron_latent_mtp"]


@pytest.mark.parametrize(
    "name, pattern, moe",
    [
        ("nemotron_moe", "MEM*EME", MoeSpec(10, 3, 72, 144, None, 1, 1, True, 2.5)),
        ("nemotron_grouped_moe", "ME*E", MoeSpec(8, 3, 72, 144, None, 2, 1, True, 2.5)),
        ("nemotron_latent_mtp", "MEM*EME", MoeSpec(10, 3, 72, 144, 48, 1, 1, True, 5.0)),
        ("grouped_latent_mtp", "M*E-E", MoeSpec(12, 5, 72, 144, 40, 3, 2, False, 5.0)),
    ],
)
def test_experts(name: str, pattern: str, moe: MoeSpec):
    spec = spec_of(EXPERT_CONFIGS[name])
    assert (spec.pattern, spec.moe) == (pattern, moe)
    assert all(s.intermediate_size is None for s in spec.layers if s.kind == LayerKind.MOE)


def test_the_older_name_of_the_number_of_experts():
    renamed = without(MOE, "n_routed_experts") | {"num_local_experts": 10}
    assert spec_of(renamed) == spec_of(MOE)
    with pytest.raises(ConfigError, match="at most num_local_experts = 10"):
        spec_of(renamed | {"num_experts_per_tok": 11})


def test_what_steers_the_routing_has_transformers_defaults():
    keys = ("n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "n_shared_experts")
    assert spec_of(without(MOE, *keys)).moe == MoeSpec(10, 3, 72, 144, None, 1, 1, True, 1.0)


def test_null_latent_size_means_none():
    assert spec_of(MOE | {"moe_latent_size": None}).moe.latent_size is None


def test_no_shared_expert():
    config = without(MOE, "moe_shared_expert_intermediate_size") | {"n_shared_experts": 0}
    assert spec_of(config).moe.shared_intermediate_size == 0


@pytest.mark.parametrize("sizes", [(1, 1, 1), (7, 13, 5), (1856, 3712, 1000)])
def test_widths_may_be_any(sizes: tuple[int, int, int]):
    keys = ("moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size")
    moe = spec_of(MOE | dict(zip(keys, sizes, strict=True))).moe
    assert (moe.intermediate_size, moe.shared_intermediate_size, moe.latent_size) == sizes


def test_the_most_experts_and_groups():
    sizes = {"n_routed_experts": 1024, "n_group": 64, "topk_group": 64, "num_experts_per_tok": 22}
    moe = spec_of(GROUPED | sizes).moe
    assert (moe.num_experts, moe.num_groups, moe.groups_per_token) == (1024, 64, 64)


def test_keys_of_experts_are_not_read_without_an_moe_layer():
    assert spec_of(DENSE | {"n_routed_experts": "x", "n_group": 0}) == spec_of(DENSE)
    assert spec_of(DENSE).moe is None


REFUSED = [
    (MOE, {"n_routed_experts": 0}, "n_routed_experts is 0", "an integer from 1"),
    (MOE, {"n_routed_experts": 8.0}, "n_routed_experts is 8.0", "an integer from 1"),
    (MOE, {"n_routed_experts": 1025}, "n_routed_experts is 1025", "at most 1024"),
    (GROUPED, {"n_routed_experts": 195, "n_group": 65}, "n_group is 65", "at most 64"),
    (GROUPED, {"n_group": 3}, "n_group is 3", "a divisor of n_routed_experts = 8"),
    (GROUPED, {"n_group": 0}, "n_group is 0", "an integer from 1"),
    (GROUPED, {"n_group": 8}, "n_group is 8", "at most half of n_routed_experts = 8"),
    (GROUPED, {"topk_group": 3}, "topk_group is 3", "at most n_group = 2"),
    (GROUPED, {"topk_group": 0}, "topk_group is 0", "an integer from 1"),
    (GROUPED, {"num_experts_per_tok": 5}, "num_experts_per_tok is 5", "4, the experts in 1 of 2"),
    (MOE, {"num_experts_per_tok": 11}, "num_experts_per_tok is 11", "n_routed_experts = 10"),
    (MOE, {"num_experts_per_tok": 0}, "num_experts_per_tok is 0", "an integer from 1"),
    (MOE, {"moe_intermediate_size": 0}, "moe_intermediate_size is 0", "an integer from 1"),
    (MOE, {"moe_intermediate_size": [72]}, "moe_intermediate_size is [72]", "an integer from 1"),
    (
        MOE,
        {"moe_shared_expert_intermediate_size": -1},
        "moe_shared_expert_intermediate_size is -1",
        "an integer from 1",
    ),
    (MOE, {"moe_latent_size": 0}, "moe_latent_size is 0", "an integer from 1"),
    (MOE, {"n_shared_experts": 2}, "n_shared_experts is 2", "0 or 1"),
    (MOE, {"n_shared_experts": True}, "n_shared_experts is true", "an integer from 0"),
    (MOE, {"n_shared_experts": -1}, "n_shared_experts is -1", "an integer from 0"),
    (MOE, {"routed_scaling_factor": 0}, "routed_scaling_factor is 0", "a positive number"),
    (MOE, {"routed_scaling_factor": "x"}, 'routed_scaling_factor is "x"', "a positive number"),
    (
        MOE,
        {"routed_scaling_factor": float("inf")},
        "routed_scaling_factor is Infinity",
        "a positive number",
    ),
    (MOE, {"norm_topk_prob": 1}, "norm_topk_prob is 1", "true or false"),
    (MTP, {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is 2", "0 or 1"),
    (MTP, {"num_nextn_predict_layers": -1}, "num_nextn_predict_layers is -1", "an integer from 0"),
    (MTP, {"num_nextn_predict_layers": "1"}, 'num_nextn_predict_layers is "1"', "an integer"),
    (
        MTP,
        {"mtp_hybrid_override_pattern": "*M"},
        'mtp_hybrid_override_pattern[1] is "M"',
        "an attention, MoE or MLP layer",
    ),
    (
        MTP,
        {"mtp_layers_block_type": ["linear_attention", "moe"]},
        'mtp_layers_block_type[0] is "linear_attention"',
        "an attention, MoE or MLP layer",
    ),
    (
        MTP,
        {"mtp_hybrid_override_pattern": "*X"},
        'mtp_hybrid_override_pattern[1] is "X"',
        "M, *, - and E",
    ),
    (
        MTP,
        {"mtp_hybrid_override_pattern": ""},
        'mtp_hybrid_override_pattern is ""',
        "1 to",
    ),
    (
        MTP,
        {"mtp_layers_block_type": "*E"},
        'mtp_layers_block_type is "*E"',
        "a list of mamba",
    ),
    (
        MTP,
        {"mtp_hybrid_override_pattern": "-", "intermediate_size": [200, 72]},
        "intermediate_size is [200, 72]",
        "one size",
    ),
    (
        MTP,
        {"mtp_hybrid_override_pattern": "-", "intermediate_size": None},
        "intermediate_size is null",
        "given",
    ),
]


@pytest.mark.parametrize("config, changes, named, allowed", REFUSED)
def test_refusals_name_key_value_and_limit(config: dict, changes: dict, named: str, allowed: str):
    with pytest.raises(ConfigError) as caught:
        spec_of(config | changes)
    text = str(caught.value)
    assert text.startswith(f"config.json: {named}")
    assert allowed in text
    assert text.isprintable()


@pytest.mark.parametrize(
    "key",
    ["n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
     "moe_shared_expert_intermediate_size"],
)  # fmt: skip
def test_sizes_have_no_silent_default(key: str):
    with pytest.raises(ConfigError, match=f"{key} is missing, but must be given"):
        spec_of(without(MOE, key))


HEAD = (LayerSpec(LayerKind.ATTENTION), LayerSpec(LayerKind.MOE))


def test_the_head_has_the_layers_of_its_pattern():
    assert spec_of(MTP).mtp_layers == HEAD
    assert spec_of(MTP | {"mtp_hybrid_override_pattern": "E-*"}).mtp_layers == (
        LayerSpec(LayerKind.MOE), LayerSpec(LayerKind.MLP, 200), LayerSpec(LayerKind.ATTENTION),
    )  # fmt: skip


@pytest.mark.parametrize("names", [LIST_NAMES, LIST_NAMES_5])
def test_list_spellings_of_the_head(names: dict[str, str]):
    listed = without(MTP, "mtp_hybrid_override_pattern")
    assert spec_of(listed | {"mtp_layers_block_type": [names["*"], names["E"]]}) == spec_of(MTP)


def test_the_list_of_the_head_wins_over_its_string_and_says_so():
    config = parsed(MTP | {"mtp_layers_block_type": ["full_attention", "mlp"]})
    assert [s.kind for s in nemotron_h_spec(config).mtp_layers] == ["*", "-"]
    assert config.warnings == [
        "mtp_hybrid_override_pattern is ignored: mtp_layers_block_type differs"
    ]


def test_a_head_that_is_not_described_is_attention_and_experts():
    assert spec_of(without(MTP, "mtp_hybrid_override_pattern")) == spec_of(MTP)


@pytest.mark.parametrize("depths", [0, None])
def test_no_head_whatever_its_pattern_says(depths: int | None):
    changes = {"num_nextn_predict_layers": depths, "mtp_hybrid_override_pattern": "nonsense"}
    assert spec_of(MTP | changes).mtp_layers == ()


def test_a_head_may_have_layers_that_the_model_has_not():
    head = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
    spec = spec_of(MOE | head | {"hybrid_override_pattern": "M-"})
    assert (spec.pattern, spec.mtp_layers) == ("M-", HEAD)
    assert spec.attention == spec_of(DENSE).attention
    assert spec.moe == spec_of(MOE).moe


def test_equal_widths_of_a_list_are_the_heads_too():
    spec = spec_of(MTP | {"mtp_hybrid_override_pattern": "-", "intermediate_size": [72, 72]})
    assert spec.mtp_layers == (LayerSpec(LayerKind.MLP, 72),)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    key=st.sampled_from([*sorted(MTP), "mtp_layers_block_type", "num_local_experts"]),
    value=json_values | st.integers(0, 12),
)
def test_any_value_of_any_key_gives_a_model_or_a_config_error(key: str, value: object):
    try:
        spec = nemotron_h_spec(HFConfig(MTP | {key: value}, Path("config.json")))
    except ConfigError as error:
        assert str(error).isprintable()
    else:
        assert spec.moe.experts_per_token <= spec.moe.num_experts
