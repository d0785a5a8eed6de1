"""A checkpoint folder is described by its config files, before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from coachwhip.checkpoint import read_model
from coachwhip.errors import CheckpointError, ConfigError
from tests.reference.checkpoints import save_shards, write_checkpoint
from tests.reference.tiny_configs import TINY_CONFIGS

DENSE = TINY_CONFIGS["nemotron_dense"] | {"torch_dtype": "float32"}


def write_config(folder: Path, config: dict, generation: object = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize(
    "name, model_type, pattern",
    [
        ("nemotron_dense", "nemotron_h", "M-M*-M-"),
        ("nemotron_repeats", "nemotron_h", "MM--**M-"),
        ("nemotron_moe", "nemotron_h", "MEM*EME"),
        ("nemotron_latent_mtp", "nemotron_h", "MEM*EME"),
        ("mamba2_g1_tied", "mamba2", "MMM"),
        ("state_spaces", "mamba2", "MMM"),
    ],
)
def test_each_format_is_found_by_its_config(tmp_path, name: str, model_type: str, pattern: str):
    model = read_model(write_config(tmp_path, TINY_CONFIGS[name] | {"dtype": "float32"}))
    assert (model.spec.model_type, model.spec.pattern) == (model_type, pattern)
    assert model.path == tmp_path


def test_a_path_may_be_a_string(tmp_path):
    assert read_model(str(write_config(tmp_path, DENSE))).path == tmp_path


@pytest.mark.parametrize(
    "changes, generation, bos, eos, pad",
    [
        ({}, None, 1, (2,), 0),
        ({"eos_token_id": [2, 11, 2]}, None, 1, (2, 11), 0),
        ({}, {"eos_token_id": [2, 11]}, 1, (2, 11), 0),
        ({}, {"eos_token_id": 12, "bos_token_id": 3, "pad_token_id": 4}, 3, (12,), 4),
        ({}, {"temperature": 0.6, "eos_token_id": None}, 1, (2,), 0),
        ({"bos_token_id": None, "pad_token_id": None}, None, None, (2,), None),
    ],
)
def test_special_tokens(tmp_path, changes: dict, generation, bos, eos, pad):
    model = read_model(write_config(tmp_path, DENSE | changes, generation))
    assert (model.bos_token_id, model.eos_token_ids, model.pad_token_id) == (bos, eos, pad)
    assert model.warnings == ()


def test_token_ids_outside_the_vocabulary_are_dropped_with_a_warning(tmp_path):
    changes = {"eos_token_id": [512, 2], "pad_token_id": -1}
    model = read_model(write_config(tmp_path, DENSE | changes))
    assert (model.eos_token_ids, model.pad_token_id) == ((2,), None)
    assert [w.split(" is ignored")[0] for w in model.warnings] == [
        "eos_token_id 512",
        "pad_token_id -1",
    ]


def test_no_end_token_is_a_warning(tmp_path):
    model = read_model(write_config(tmp_path, DENSE | {"eos_token_id": None}))
    assert model.eos_token_ids == ()
    assert "eos_token_id is not given" in model.warnings[0]


def test_state_spaces_models_end_with_the_first_token(tmp_path):
    model = read_model(write_config(tmp_path, TINY_CONFIGS["state_spaces"] | {"dtype": "float32"}))
    assert (model.bos_token_id, model.eos_token_ids) == (0, (0,))


@pytest.mark.parametrize("value", ["2", 2.0, [2, "3"], True, {"id": 2}])
def test_malformed_token_ids(tmp_path, value: object):
    with pytest.raises(ConfigError, match=r"eos_token_id is .* a token id or a list of them"):
        read_model(write_config(tmp_path, DENSE | {"eos_token_id": value}))
    with pytest.raises(ConfigError, match=r"generation_config\.json: eos_token_id is"):
        read_model(write_config(tmp_path, DENSE, {"eos_token_id": value}))


def test_a_broken_generation_config_is_an_error(tmp_path):
    write_config(tmp_path, DENSE)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: line 1 column 2"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    "generation, defaults",
    [
        (None, {}),
        ({"eos_token_id": [2, 11], "transformers_version": "5.0"}, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "num_beams": 4},
            {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20},
        ),
        (
            {"do_sample": False, "temperature": 0, "top_p": 1, "top_k": 0},
            {"do_sample": False, "temperature": 0, "top_p": 1, "top_k": 0},
        ),
        ({"do_sample": True, "temperature": None, "top_k": None}, {"do_sample": True}),
    ],
)
def test_sampling_defaults(tmp_path, generation: dict | None, defaults: dict):
    model = read_model(write_config(tmp_path, DENSE, generation))
    assert model.generation_defaults == defaults
    assert model.warnings == ()


@pytest.mark.parametrize(
    "key, value, shown, allowed",
    [
        ("do_sample", 1, "1", "true or false"),
        ("temperature", -0.5, "-0.5", "a number of at least 0"),
        ("temperature", "hot", '"hot"', "a number of at least 0"),
        ("temperature", float("inf"), "Infinity", "a number of at least 0"),
        ("temperature", True, "true", "a number of at least 0"),
        ("top_p", 0, "0", "a number above 0 and at most 1"),
        ("top_p", 1.5, "1.5", "a number above 0 and at most 1"),
        ("top_k", -1, "-1", "an integer of at least 0"),
        ("top_k", 5.0, "5.0", "an integer of at least 0"),
    ],
)
def test_senseless_sampling_defaults_are_left_out_with_a_warning(
    tmp_path, key: str, value: object, shown: str, allowed: str
):
    model = read_model(write_config(tmp_path, DENSE, {"do_sample": True} | {key: value}))
    assert key not in model.generation_defaults
    assert model.warnings == (
        f"generation_config.json: {key} {shown} is ignored: it must be {allowed}",
    )


def test_a_default_beyond_all_floats_is_ignored(tmp_path):
    model = read_model(write_config(tmp_path, DENSE, {"temperature": 10**400}))
    assert "temperature" not in model.generation_defaults
    assert "temperature" in model.warnings[0] and "is ignored" in model.warnings[0]


@pytest.mark.parametrize(
    "given, dtype",
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
        ({"torch_dtype": None, "dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "auto", "dtype": "bfloat16"}, "bfloat16"),
    ],
)
def test_dtype_of_the_config(tmp_path, given: dict, dtype: str):
    config = TINY_CONFIGS["nemotron_dense"] | given
    assert read_model(write_config(tmp_path, config)).dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shards", [1, 2])
def test_dtype_of_the_files(tmp_path, dtype: str, shards: int):
    write_checkpoint(tmp_path, TINY_CONFIGS["nemotron_dense"], dtype=dtype, shards=shards)
    assert read_model(tmp_path).dtype == dtype


def test_dtype_of_most_of_the_bytes(tmp_path):
    write_config(tmp_path, TINY_CONFIGS["nemotron_dense"])
    save_shards(tmp_path, {"a": torch.zeros(9).bfloat16(), "b": torch.zeros(3)}, 1)
    assert read_model(tmp_path).dtype == "bfloat16"


@pytest.mark.parametrize("value", ["float64", "int8", 3, ["float32"], {}])
def test_other_dtypes_are_refused(tmp_path, value: object):
    config = TINY_CONFIGS["nemotron_dense"] | {"torch_dtype": value}
    with pytest.raises(ConfigError, match=r"torch_dtype is .* float32, bfloat16, float16"):
        read_model(write_config(tmp_path, config))


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"model_type": "granitemoehybrid"}, 'model_type is "granitemoehybrid"'),
        ({"model_type": "nemotron_h_puzzle"}, 'model_type is "nemotron_h_puzzle"'),
        ({"model_type": None}, "model_type is null, but must be given"),
        ({"model_type": ["mamba2"]}, 'model_type is ["mamba2"]'),
        ({"quantization_config": {"quant_method": "modelopt"}}, "quantization_config is {"),
        ({"quantization_config": {}}, "quantization_config is {}"),
    ],
)
def test_refusals(tmp_path, changes: dict, problem: str):
    with pytest.raises(ConfigError) as caught:
        read_model(write_config(tmp_path, DENSE | changes))
    assert problem in str(caught.value)
    assert caught.value.source == str(tmp_path / "config.json")
    assert str(caught.value).isprintable()


def test_separate_quantization_files_are_refused(tmp_path):
    (write_config(tmp_path, DENSE) / "hf_quant_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json is present; quant"):
        read_model(tmp_path)


def test_no_folder(tmp_path):
    with pytest.raises(
        CheckpointError, match="absent: no such folder; give a checkpoint's folder or a hub id"
    ):
        read_model(tmp_path / "absent")


def test_a_file_instead_of_a_folder(tmp_path):
    path = write_config(tmp_path, DENSE) / "config.json"
    with pytest.raises(CheckpointError) as caught:
        read_model(path)
    assert (
        str(caught.value) == f"{path}: is a file, but must be a folder; give its folder, {tmp_path}"
    )


def test_an_empty_folder_and_one_without_a_config(tmp_path):
    with pytest.raises(CheckpointError, match="is empty"):
        read_model(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        read_model(tmp_path)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_names_that_are_no_path(name: str):
    with pytest.raises(CheckpointError) as caught:
        read_model(name)
    assert str(caught.value).isprintable()


def test_a_config_that_is_not_json_names_the_place(tmp_path):
    (tmp_path / "config.json").write_text('{\n  "a": 1,\n}')
    with pytest.raises(CheckpointError, match=r"config\.json: line 3 column 1"):
        read_model(tmp_path)


def test_a_config_alone_is_enough_when_it_names_its_dtype(tmp_path):
    assert read_model(write_config(tmp_path, DENSE)).dtype == "float32"
    (tmp_path / "config.json").write_text(json.dumps(TINY_CONFIGS["nemotron_dense"]))
    with pytest.raises(CheckpointError, match="holds no weights"):
        read_model(tmp_path)
