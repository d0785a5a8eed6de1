"""Weights arrive under the graphs' names, converted as said, mapped where nothing changes."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from max.driver import Buffer
from max.dtype import DType

from coachwhip.checkpoint import load_weights, read_model
from coachwhip.checkpoint.disk_form import wanted_weights
from coachwhip.checkpoint.safetensors_files import SINGLE_FILE, SafetensorsFiles
from coachwhip.config import weight_bytes
from coachwhip.errors import MOST_LISTED, CheckpointError
from coachwhip_graphs.weights import graph_weights
from tests.checkpoint.registry import as_torch, expected_weights
from tests.reference.checkpoints import DTYPES, random_tensors, save_shards, write_checkpoint
from tests.reference.panels import panels
from tests.reference.tiny_configs import TINY_CONFIGS

DENSE = TINY_CONFIGS["nemotron_dense"]


def load(folder: Path, dtype: DType = DType.float32, **options) -> dict[str, np.ndarray | Buffer]:
    return load_weights(folder, read_model(folder).spec, dtype, **options)


@pytest.mark.parametrize("stored_dtype", list(DTYPES))
@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16, DType.float16])
@pytest.mark.parametrize("shards", [1, 3])
def test_values_of_every_dtype(tmp_path, stored_dtype: str, dtype: DType, shards: int):
    stored = write_checkpoint(tmp_path, DENSE, dtype=stored_dtype, shards=shards)
    weights = load(tmp_path, dtype)
    wanted = graph_weights(read_model(tmp_path).spec, dtype)
    assert list(weights) == list(wanted)
    expected = expected_weights(stored, wanted)
    for name, spec in wanted.items():
        value = as_torch(weights[name])
        assert isinstance(weights[name], Buffer) == (spec.dtype == DType.bfloat16)
        assert tuple(value.shape) == spec.shape
        matrix = len(spec.shape) == 2 and "conv1d" not in name
        assert value.dtype == (DTYPES[dtype.name] if matrix else torch.float32)
        assert value.is_contiguous()
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(
    "name",
    ["nemotron_conv2", "nemotron_conv3", "nemotron_repeats", "nemotron_no_conv_bias",
     "mamba2_g1_tied", "mamba2_g4"],
)  # fmt: skip
def test_values_of_other_models(tmp_path, name: str):
    stored = write_checkpoint(tmp_path, TINY_CONFIGS[name])
    wanted = graph_weights(read_model(tmp_path).spec, DType.float32)
    expected = expected_weights(stored, wanted)
    weights = load(tmp_path)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(as_torch(weights[n]), expected[n]) for n in weights)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["nemotron_dense", "nemotron_moe", "nemotron_latent_mtp", "mamba2_g1_tied"]
)
def test_matrices_in_panels(tmp_path, name: str, dtype: str):
    stored = write_checkpoint(tmp_path, TINY_CONFIGS[name])
    spec, values = read_model(tmp_path).spec, {}
    weights = load(tmp_path, DType[dtype], panels=True)
    expected = expected_weights(stored, wanted_weights(spec, DType[dtype]))
    for weight, value in expected.items():
        if value.ndim < 2 or "conv1d" in weight:
            values[weight] = value
            continue
        if weight == "embeddings.weight":
            values[weight] = value
            if "lm_head.weight" in expected:
                continue
        held = value.contiguous().view(torch.uint16 if value.itemsize == 2 else value.dtype)
        values[weight + ".panels"] = torch.from_numpy(panels(held.numpy())).view(value.dtype)
    assert weights.keys() == values.keys()
    assert all(torch.equal(as_torch(weights[n]), values[n]) for n in weights)
    size = sum(value.numel() * value.itemsize for value in values.values())
    assert weight_bytes(spec, dtype, "cpu") == size


@pytest.mark.parametrize("prefix", ["model.", "language_model.backbone."])
def test_other_prefixes(tmp_path, prefix: str):
    write_checkpoint(tmp_path / "a", DENSE)
    write_checkpoint(tmp_path / "b", DENSE, prefix=prefix)
    expected, got = load(tmp_path / "a"), load(tmp_path / "b")
    assert all(np.array_equal(expected[n], got[n]) for n in expected)


def test_state_spaces_format_loads_as_the_same_model(tmp_path, caplog):
    write_checkpoint(tmp_path / "a", TINY_CONFIGS["mamba2_g1_tied"])
    write_checkpoint(tmp_path / "b", TINY_CONFIGS["state_spaces"])
    expected, got = load(tmp_path / "a"), load(tmp_path / "b")
    assert expected.keys() == got.keys()
    assert all(np.array_equal(expected[n], got[n]) for n in expected)
    assert not caplog.records  # its lm_head is a copy of the embeddings


def test_state_spaces_models_without_conv_bias(tmp_path):
    config = TINY_CONFIGS["state_spaces"]
    config = config | {"ssm_cfg": config["ssm_cfg"] | {"conv_bias": False}}
    write_checkpoint(tmp_path, config)
    assert not load(tmp_path)["layers.2.mixer.conv1d.bias"].any()


def test_a_head_that_is_tied_and_differs_is_a_warning(tmp_path):
    tensors = random_tensors(TINY_CONFIGS["state_spaces"])
    tensors["lm_head.weight"][3, 5] += 1.0
    write_checkpoint(tmp_path, TINY_CONFIGS["state_spaces"], tensors=tensors)
    warnings: list[str] = []
    assert "lm_head.weight" not in load(tmp_path, on_warning=warnings.append)
    assert warnings == [
        "lm_head.weight is not used: the model's head is tied to backbone.embedding.weight"
    ]


@pytest.fixture
def opened(monkeypatch) -> list[SafetensorsFiles]:
    """The files that were opened while a test ran."""
    found: list[SafetensorsFiles] = []
    original = SafetensorsFiles.open

    def opening(folder: Path) -> SafetensorsFiles:
        found.append(original(folder))
        return found[-1]

    monkeypatch.setattr(SafetensorsFiles, "open", opening)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_matrices_of_the_same_dtype_stay_mapped(tmp_path, opened, dtype: str):
    write_checkpoint(tmp_path, DENSE | {"torch_dtype": dtype}, dtype=dtype)
    weights = load(tmp_path, DType[dtype])
    matrices = {n: v for n, v in weights.items() if len(v.shape) == 2 and "conv1d" not in n}
    assert len(matrices) == 2 + 3 * 2 + 3 * 2 + 4
    for name, value in matrices.items():
        if isinstance(value, Buffer):
            value = value.view(DType.uint16).to_numpy()
        stored = name if name.startswith("lm_head") else f"backbone.{name}"
        assert np.shares_memory(value, opened[-1].values(stored)), name


def shift_data(path: Path, by: int) -> None:
    """Rewrites a file with its header padded so that the data start `by` bytes past a multiple."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].rstrip()
    header += b" " * ((by - len(header)) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("by", [1, 2, 3])
def test_values_at_odd_addresses_are_copied(tmp_path, dtype: str, by: int):
    for name in ("aligned", "odd"):
        write_checkpoint(tmp_path / name, DENSE, dtype=dtype)
    shift_data(tmp_path / "odd" / SINGLE_FILE, by)
    expected, got = (load(tmp_path / name, DType[dtype]) for name in ("aligned", "odd"))
    for name, value in got.items():
        assert torch.equal(as_torch(value), as_torch(expected[name])), name
        address = as_torch(value).data_ptr()
        assert address % as_torch(value).element_size() == 0


def test_all_that_is_wrong_with_the_tensors_is_one_error(tmp_path):
    tensors = random_tensors(DENSE)
    del tensors["backbone.layers.0.mixer.D"], tensors["lm_head.weight"]
    tensors["backbone.layers.7.norm.weight"] = torch.ones(128)
    tensors["vision.weight"] = torch.ones(2, 2)
    tensors["backbone.layers.1.mixer.up_proj.weight"] = torch.ones(128, 200)
    tensors["backbone.layers.2.mixer.conv1d.weight"] = torch.ones(448, 4)
    tensors["backbone.layers.2.mixer.A_log"] = torch.ones(12, dtype=torch.int32)
    tensors["model.norm_f.weight"] = torch.ones(128)
    save_shards(write_config(tmp_path, DENSE), tensors, 1)
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert str(caught.value).splitlines() == [
        f"{tmp_path}: tensors 2 missing, 2 extra, 2 of wrong shape, 1 of wrong dtype,"
        " 1 stored twice; config.json and weights do not describe the same model",
        "  missing: backbone.layers.0.mixer.D [12]",
        "  missing: lm_head.weight [512, 128]",
        "  extra: backbone.layers.7.norm.weight [128]",
        "  extra: vision.weight [2, 2]",
        "  wrong shape: backbone.layers.1.mixer.up_proj.weight is [128, 200],"
        " but must be [200, 128]",
        "  wrong shape: backbone.layers.2.mixer.conv1d.weight is [448, 4], but must be [448, 1, 4]",
        "  wrong dtype: backbone.layers.2.mixer.A_log is I32, but must be F32, F16, BF16",
        "  stored twice: backbone.norm_f.weight and model.norm_f.weight",
    ]


def write_config(folder: Path, config: dict) -> Path:
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
    return folder


def test_long_lists_are_cut_with_their_count(tmp_path):
    extra = {f"x.{i}": torch.zeros(1) for i in range(MOST_LISTED + 7)}
    save_shards(write_config(tmp_path, DENSE), random_tensors(DENSE) | extra, 1)
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    lines = str(caught.value).splitlines()
    assert f"tensors {MOST_LISTED + 7} extra;" in lines[0]
    assert len(lines) == 1 + MOST_LISTED + 1
    assert lines[-1] == "  and 7 more"


def test_one_wrong_tensor_is_one_line(tmp_path):
    tensors = random_tensors(DENSE)
    del tensors["backbone.norm_f.weight"]
    write_checkpoint(tmp_path, DENSE, tensors=tensors)
    with pytest.raises(
        CheckpointError, match=r": missing: backbone\.norm_f\.weight \[128\]; config\.json"
    ) as e:
        load(tmp_path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("prefix", ["model.", "language_model.backbone."])
def test_missing_tensors_are_called_as_in_the_files(tmp_path, prefix: str):
    tensors = random_tensors(DENSE)
    del tensors["backbone.layers.2.mixer.A_log"], tensors["lm_head.weight"]
    write_checkpoint(tmp_path, DENSE, tensors=tensors, prefix=prefix)
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    head = "language_model." if prefix.startswith("language_model.") else ""
    assert str(caught.value).splitlines()[1:] == [
        f"  missing: {prefix}layers.2.mixer.A_log [12]",
        f"  missing: {head}lm_head.weight [512, 128]",
    ]


def test_a_bias_that_the_config_denies_is_extra_and_one_it_promises_is_missing(tmp_path):
    write_checkpoint(tmp_path, DENSE)
    write_config(tmp_path, DENSE | {"use_conv_bias": False})
    with pytest.raises(CheckpointError, match="tensors 3 extra"):
        load(tmp_path)
    write_checkpoint(tmp_path, DENSE | {"use_conv_bias": False})
    write_config(tmp_path, DENSE)
    with pytest.raises(CheckpointError, match="tensors 3 missing"):
        load(tmp_path)


def test_quantised_tensors_are_of_wrong_dtype(tmp_path):
    tensors = random_tensors(DENSE)
    name = "backbone.layers.0.mixer.in_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_shards(write_config(tmp_path, DENSE), tensors, 1)
    with pytest.raises(CheckpointError, match=f"wrong dtype: {name} is F8_E4M3"):
        load(tmp_path)


def test_unused_heads_and_scales_are_warnings(tmp_path):
    tensors = random_tensors(DENSE) | {
        "mtp.layers.0.enorm.weight": torch.ones(128),
        "backbone.layers.3.mixer.k_proj.k_scale": torch.ones(1),
        "backbone.layers.3.mixer.v_proj.v_scale": torch.ones(1),
    }
    write_checkpoint(tmp_path, DENSE, tensors=tensors)
    warnings: list[str] = []
    load(tmp_path, on_warning=warnings.append)
    assert warnings == [
        "1 multi-token prediction (mtp) tensors are not used: mtp.layers.0.enorm.weight",
        "2 key-value cache scale tensors are not used: backbone.layers.3.mixer.k_proj.k_scale,"
        " backbone.layers.3.mixer.v_proj.v_scale",
    ]


@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
def test_values_that_are_not_finite_are_counted_by_tensor(tmp_path, dtype: DType, stored: str):
    tensors = random_tensors(DENSE)
    tensors["backbone.layers.0.mixer.in_proj.weight"][5, :3] = torch.nan
    tensors["backbone.layers.0.mixer.in_proj.weight"][600, 100] = -torch.inf
    tensors["backbone.layers.5.mixer.D"][2] = torch.inf
    write_checkpoint(tmp_path, DENSE, tensors=tensors, dtype=stored)
    warnings: list[str] = []
    load(tmp_path, dtype, on_warning=warnings.append)
    assert warnings == [
        "backbone.layers.0.mixer.in_proj.weight holds 3 NaN and 1 infinite values in " + dtype.name,
        "backbone.layers.5.mixer.D holds 0 NaN and 1 infinite values in float32",
    ]
    warnings.clear()
    load(tmp_path, dtype, on_warning=warnings.append, check_finite=False)
    assert warnings == []


def test_values_that_overflow_the_model_dtype_are_reported(tmp_path):
    tensors = random_tensors(DENSE)
    tensors["backbone.layers.1.mixer.up_proj.weight"][0, 0] = 1e5
    write_checkpoint(tmp_path, DENSE, tensors=tensors)
    warnings: list[str] = []
    load(tmp_path, DType.float16, on_warning=warnings.append)
    assert warnings == [
        "backbone.layers.1.mixer.up_proj.weight holds 0 NaN and 1 infinite values in float16"
    ]


def test_a_decay_that_overflows_is_reported(tmp_path):
    tensors = random_tensors(DENSE)
    tensors["backbone.layers.2.mixer.A_log"][0] = 89.0
    write_checkpoint(tmp_path, DENSE, tensors=tensors)
    warnings: list[str] = []
    weights = load(tmp_path, on_warning=warnings.append)
    assert warnings == [
        "backbone.layers.2.mixer.A_log holds values above 88: -exp(A_log) is infinite in float32"
    ]
    assert weights["layers.2.mixer.A"][0] == -np.inf


def test_warnings_are_logged_unless_told_otherwise(tmp_path, caplog):
    tensors = random_tensors(DENSE)
    tensors["backbone.norm_f.weight"][0] = torch.nan
    write_checkpoint(tmp_path, DENSE, tensors=tensors)
    with caplog.at_level(logging.WARNING, logger="coachwhip"):
        load(tmp_path)
    assert caplog.messages == [
        "backbone.norm_f.weight holds 1 NaN and 0 infinite values in float32"
    ]


def test_no_folder_and_no_weights(tmp_path):
    spec = read_model(write_config(tmp_path, DENSE)).spec
    with pytest.raises(CheckpointError, match="holds no weights"):
        load_weights(tmp_path, spec, DType.float32)
    with pytest.raises(CheckpointError, match="no such folder"):
        load_weights(tmp_path / "absent", spec, DType.float32)
