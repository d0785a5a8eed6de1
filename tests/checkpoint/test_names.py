"""Stored names of every writer map to one spelling."""

from __future__ import annotations

import pytest

from coachwhip.checkpoint.names import canonical_name, canonical_names, stored_name


@pytest.mark.parametrize(
    "stored, canonical",
    [
        ("backbone.embeddings.weight", "embeddings.weight"),
        ("backbone.embedding.weight", "embeddings.weight"),
        ("model.embeddings.weight", "embeddings.weight"),
        ("language_model.backbone.layers.0.norm.weight", "layers.0.norm.weight"),
        ("language_model.model.norm_f.weight", "norm_f.weight"),
        ("backbone.layers.10.mixer.A_log", "layers.10.mixer.A_log"),
        ("lm_head.weight", "lm_head.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("language_model.mtp.layers.0.enorm.weight", "mtp.layers.0.enorm.weight"),
        ("mtp.layers.1.mixer.gate.weight", "mtp.layers.1.mixer.gate.weight"),
        ("model.mtp.layers.0.hnorm.weight", "mtp.layers.0.hnorm.weight"),
        ("backbone.layers.1.mixer.experts.7.up_proj.weight",
         "layers.1.mixer.experts.7.up_proj.weight"),
        ("model.layers.1.mixer.experts.up_proj", "layers.1.mixer.experts.up_proj"),
        ("model.layers.1.mixer.experts.down_proj.weight", "layers.1.mixer.experts.down_proj"),
        ("language_model.mtp.layers.1.mixer.experts.up_proj.weight",
         "mtp.layers.1.mixer.experts.up_proj"),
        ("backbone.layers.1.mixer.shared_experts.up_proj.weight",
         "layers.1.mixer.shared_experts.up_proj.weight"),
        ("vision_model.radio.weight", "vision_model.radio.weight"),
    ],
)  # fmt: skip
def test_spellings(stored: str, canonical: str):
    assert canonical_name(stored) == canonical


def test_unused_tensors_are_set_apart():
    scales = [
        "backbone.layers.3.mixer.k_proj.k_scale",
        "backbone.layers.3.mixer.v_scale",
        "backbone.layers.3.mixer.k_scale",
        "backbone.layers.3.mixer.v_proj.v_scale",
    ]
    copies = [
        "language_model.mtp.lm_head.weight",
        "mtp.embeddings.weight",
        "mtp.layers.0.embed_tokens.weight",
        "mtp.layers.1.lm_head.weight",
    ]
    weights = ["backbone.layers.3.mixer.k_proj.weight", "x.weight_scale", "mtp.my_lm_head.weight"]
    names = canonical_names([*scales, *copies, *weights])
    assert names.kv_scales == sorted(scales)
    assert names.mtp_copies == copies
    assert names.stored == {
        "layers.3.mixer.k_proj.weight": weights[0],
        "x.weight_scale": weights[1],
        "mtp.my_lm_head.weight": weights[2],
    }


def test_two_spellings_of_one_tensor_are_noted():
    names = canonical_names(["model.norm_f.weight", "backbone.norm_f.weight"])
    assert names.repeated == [
        ("norm_f.weight", "backbone.norm_f.weight", "model.norm_f.weight"),
    ]
    stack = "layers.1.mixer.experts.up_proj"
    names = canonical_names([f"model.{stack}", f"model.{stack}.weight"])
    assert names.repeated == [(stack, f"model.{stack}", f"model.{stack}.weight")]


@pytest.mark.parametrize(
    "prefix, stored",
    [
        ("backbone.", ("backbone.norm_f.weight", "lm_head.weight", "mtp.layers.0.enorm.weight")),
        ("model.", ("model.norm_f.weight", "lm_head.weight", "mtp.layers.0.enorm.weight")),
        ("language_model.backbone.", ("language_model.backbone.norm_f.weight",
         "language_model.lm_head.weight", "language_model.mtp.layers.0.enorm.weight")),
        ("", ("norm_f.weight", "lm_head.weight", "mtp.layers.0.enorm.weight")),
    ],
)  # fmt: skip
def test_a_name_is_spelled_as_the_files_spell_the_others(prefix: str, stored: tuple[str, ...]):
    canonical = ("norm_f.weight", "lm_head.weight", "mtp.layers.0.enorm.weight")
    others = [f"{prefix}layers.{i}.norm.weight" for i in range(2)]
    towers = [f"vision_model.blocks.{i}.weight" for i in range(9)]
    found = canonical_names([*others, *towers, "mtp.layers.0.hnorm.weight"]).prefix()
    assert found == prefix
    assert tuple(stored_name(name, found) for name in canonical) == stored
    assert tuple(map(canonical_name, stored)) == canonical


def test_where_no_layer_is_stored_names_are_the_published_ones():
    assert canonical_names(["lm_head.weight", "vision_model.x"]).prefix() == "backbone."
