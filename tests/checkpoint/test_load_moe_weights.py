"""Experts arrive stacked, in either spelling, and the multi-token-prediction head with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from max.driver import Buffer
from max.dtype import DType

from coachwhip.checkpoint import load_weights, read_model
from coachwhip.checkpoint.safetensors_files import SafetensorsFiles
from coachwhip.errors import CheckpointError
from coachwhip_graphs.weights import graph_weights, mtp_weights
from tests.checkpoint.expert_configs import EXPERT_CONFIGS
from tests.checkpoint.registry import as_torch, expected_weights
from tests.reference.checkpoints import (
    DTYPES,
    LIST_NAMES_5,
    random_tensors,
    save_shards,
    stack_experts,
    write_checkpoint,
)
from tests.reference.tiny_configs import TINY_CONFIGS

MOE = TINY_CONFIGS["nemotron_moe"]
MTP = TINY_CONFIGS["nemotron_latent_mtp"]
UP = "backbone.layers.1.mixer.experts.{}.up_proj.weight"


def load(folder: Path, dtype: DType = DType.float32, **options) -> dict[str, np.ndarray | Buffer]:
    return load_weights(folder, read_model(folder).spec, dtype, **options)


def refused(folder: Path, config: dict, tensors: dict[str, torch.Tensor], **options) -> list[str]:
    """Returns the lines of the error that loading a checkpoint of these tensors ends with."""
    write_checkpoint(folder, config, tensors=tensors, **options)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    return str(caught.value).splitlines()


def test_there_are_models_of_every_kind():
    assert EXPERT_CONFIGS.keys() >= {
        "nemotron_moe", "nemotron_grouped_moe", "nemotron_latent_mtp", "grouped_latent_mtp",
    }  # fmt: skip


@pytest.mark.parametrize("name", EXPERT_CONFIGS)
@pytest.mark.parametrize("stored_dtype, dtype", [
    ("float32", DType.float32), ("bfloat16", DType.bfloat16), ("float32", DType.bfloat16),
    ("bfloat16", DType.float32), ("float16", DType.bfloat16),
])  # fmt: skip
@pytest.mark.parametrize("stack", [None, "", ".weight"])
def test_values_are_those_of_the_files(tmp_path, name, stored_dtype, dtype, stack):
    stored = write_checkpoint(tmp_path, EXPERT_CONFIGS[name], dtype=stored_dtype, stack=stack)
    spec = read_model(tmp_path).spec
    wanted = graph_weights(spec, dtype) | mtp_weights(spec, dtype)
    expected, weights = expected_weights(stored, wanted), load(tmp_path, dtype)
    assert list(weights) == list(wanted)
    for key, weight in wanted.items():
        value = as_torch(weights[key])
        assert value.is_contiguous()
        assert tuple(value.shape) == weight.shape
        assert value.dtype == DTYPES[weight.dtype.name]
        assert torch.equal(value, expected[key]), key


def test_the_router_is_float32_and_the_experts_are_in_the_models_dtype(tmp_path):
    write_checkpoint(tmp_path, MTP, dtype="bfloat16")
    weights = load(tmp_path, DType.bfloat16)
    for root in ("layers.1.mixer.", "mtp.layers.1.mixer."):
        for name in ("gate.weight", "gate.e_score_correction_bias"):
            assert as_torch(weights[root + name]).dtype == torch.float32
        for name in ("experts.up_proj", "experts.down_proj", "shared_experts.up_proj.weight",
                     "fc1_latent_proj.weight"):  # fmt: skip
            assert as_torch(weights[root + name]).dtype == torch.bfloat16
    assert as_torch(weights["layers.1.mixer.experts.up_proj"]).shape == (10, 72, 48)
    assert as_torch(weights["layers.1.mixer.experts.down_proj"]).shape == (10, 48, 72)


@pytest.mark.parametrize("prefix", ["model.", "language_model.backbone."])
@pytest.mark.parametrize("stack", [None, ""])
@pytest.mark.parametrize("shards", [1, 5])
def test_other_prefixes_and_shards(tmp_path, prefix: str, stack: str | None, shards: int):
    write_checkpoint(tmp_path / "a", MTP)
    write_checkpoint(tmp_path / "b", MTP, prefix=prefix, stack=stack, shards=shards,
                     layer_names=LIST_NAMES_5)  # fmt: skip
    expected, got = load(tmp_path / "a"), load(tmp_path / "b")
    assert got.keys() == expected.keys()
    assert all(np.array_equal(expected[n], got[n]) for n in expected)


def test_experts_of_different_dtypes(tmp_path):
    tensors = random_tensors(MOE)
    stored = write_checkpoint(tmp_path, MOE, tensors=tensors, dtype="bfloat16")
    exact = tensors[UP.format(3)]
    stored = {n: exact if n == UP.format(3) else t for n, t in stored.items()}
    save_shards(tmp_path, stored, 1)
    stack = as_torch(load(tmp_path)["layers.1.mixer.experts.up_proj"])
    assert torch.equal(stack[3], exact)
    assert torch.equal(stack[2], stored[UP.format(2)].float())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stacks_of_the_right_dtype_stay_mapped(tmp_path, monkeypatch, dtype: str):
    opened: list[SafetensorsFiles] = []
    original = SafetensorsFiles.open
    monkeypatch.setattr(
        SafetensorsFiles, "open", lambda folder: opened.append(original(folder)) or opened[-1]
    )
    write_checkpoint(tmp_path, MOE | {"torch_dtype": dtype}, dtype=dtype, stack="")
    weights = load(tmp_path, DType[dtype])
    for name in ("layers.1.mixer.experts.up_proj", "layers.6.mixer.experts.down_proj"):
        value = weights[name]
        if isinstance(value, Buffer):
            value = value.view(DType.uint16).to_numpy()
        assert np.shares_memory(value, opened[-1].values(f"backbone.{name}")), name


def test_a_head_can_be_left_out(tmp_path):
    write_checkpoint(tmp_path, MTP)
    warnings: list[str] = []
    weights = load(tmp_path, mtp=False, on_warning=warnings.append)
    assert list(weights) == list(graph_weights(read_model(tmp_path).spec, DType.float32))
    assert warnings == []


def test_a_head_that_the_config_does_not_promise_is_a_warning(tmp_path):
    write_checkpoint(tmp_path, MTP, prefix="language_model.backbone.")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    warnings: list[str] = []
    weights = load(tmp_path, on_warning=warnings.append)
    assert not any(name.startswith("mtp.") for name in weights)
    assert [w.split(":")[0] for w in warnings] == [
        "36 multi-token prediction (mtp) tensors are not used"
    ]


def test_a_head_that_the_config_promises_and_is_absent_is_missing(tmp_path):
    tensors = {n: t for n, t in random_tensors(MTP).items() if not n.startswith("mtp.")}
    lines = refused(tmp_path, MTP, tensors)
    assert ": tensors 36 missing; config.json and weights" in lines[0]
    assert "  missing: mtp.layers.0.eh_proj.weight [128, 256]" in lines
    assert "  missing: mtp.layers.1.mixer.experts.9.down_proj.weight [48, 72]" in lines
    assert "mtp.layers.0.eh_proj.weight" not in load(tmp_path, mtp=False)


def test_embeddings_and_lm_head_of_the_head_are_ignored_with_a_warning(tmp_path):
    copies = {"mtp.embeddings.weight": torch.ones(2), "mtp.lm_head.weight": torch.ones(2)}
    write_checkpoint(tmp_path, MTP, tensors=random_tensors(MTP) | copies)
    warnings: list[str] = []
    load(tmp_path, on_warning=warnings.append)
    assert warnings == [
        "2 own embedding or LM head (mtp) tensors are not used: mtp.embeddings.weight,"
        " mtp.lm_head.weight"
    ]


def test_missing_extra_and_misshapen_experts_are_named(tmp_path):
    tensors = random_tensors(MOE)
    del tensors[UP.format(4)]
    tensors[UP.format(10)] = torch.ones(72, 128)
    tensors[UP.format(5)] = torch.ones(128, 72)
    assert [line.strip() for line in refused(tmp_path, MOE, tensors)[1:]] == [
        "missing: backbone.layers.1.mixer.experts.4.up_proj.weight [72, 128]",
        "extra: backbone.layers.1.mixer.experts.10.up_proj.weight [72, 128]",
        "wrong shape: backbone.layers.1.mixer.experts.5.up_proj.weight is [128, 72],"
        " but must be [72, 128]",
    ]


def test_stacks_of_another_shape_are_named(tmp_path):
    lines = refused(tmp_path, MOE | {"n_routed_experts": 9}, random_tensors(MOE), stack="")
    assert ": tensors 12 of wrong shape;" in lines[0]  # 2 stacks and 2 of the router in 3 layers
    assert (
        "  wrong shape: backbone.layers.1.mixer.experts.up_proj is [10, 72, 128],"
        " but must be [9, 72, 128]"
    ) in lines


def test_experts_stored_in_both_spellings_are_extra(tmp_path):
    tensors = random_tensors(MOE)
    stack = "backbone.layers.1.mixer.experts.up_proj"
    lines = refused(tmp_path, MOE, tensors | {stack: stack_experts(tensors)[stack]})
    assert ": tensors 10 extra;" in lines[0]
    assert "  extra: backbone.layers.1.mixer.experts.0.up_proj.weight [72, 128]" in lines


def test_a_model_without_shared_expert(tmp_path):
    config = MOE | {"n_shared_experts": 0}
    tensors = {n: t for n, t in random_tensors(MOE).items() if ".shared_experts." not in n}
    write_checkpoint(tmp_path, config, tensors=tensors)
    assert not any("shared_experts" in name for name in load(tmp_path))


@pytest.mark.parametrize("stack", [None, ""])
def test_values_that_are_not_finite_are_counted_in_experts_and_head_too(tmp_path, stack):
    tensors = random_tensors(MTP)
    tensors[UP.format(7)][1, 2] = torch.nan
    tensors["mtp.layers.1.mixer.experts.2.down_proj.weight"][:2, 0] = torch.inf
    tensors["mtp.layers.0.hnorm.weight"][0] = torch.nan
    write_checkpoint(tmp_path, MTP, tensors=tensors, stack=stack)
    warnings: list[str] = []
    load(tmp_path, on_warning=warnings.append)
    one_by_one = stack is None
    assert warnings == [
        f"backbone.layers.1.mixer.experts.{'7.up_proj.weight' if one_by_one else 'up_proj'}"
        " holds 1 NaN and 0 infinite values in float32",
        "mtp.layers.0.hnorm.weight holds 1 NaN and 0 infinite values in float32",
        f"mtp.layers.1.mixer.experts.{'2.down_proj.weight' if one_by_one else 'down_proj'}"
        " holds 0 NaN and 2 infinite values in float32",
    ]
