"""The loader asks for exactly the tensors of the published models, without any of them here."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
from max.dtype import DType

from coachwhip.checkpoint import disk_tensors, read_model, safetensors_files
from coachwhip.checkpoint.disk_form import wanted_weights
from coachwhip.checkpoint.inventory import take_inventory
from coachwhip.checkpoint.safetensors_files import INDEX_FILE, SafetensorsFiles
from coachwhip_graphs.spec import ModelSpec
from tests.checkpoint.published_configs import PUBLISHED

LIGHTNING = "Nemotron-3.5-Lightning-30B-A3B"
SUPER = "Nemotron-3-Super-120B-A12B"


def spec_of(folder: Path, name: str) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(PUBLISHED[name]))
    model = read_model(folder)
    assert model.warnings == ()
    return model.spec


@pytest.mark.parametrize(
    "name, layers, in_proj_rows, conv_dim",
    [
        ("Nemotron-H-4B", (24, 4, 24, 0), 16496, 9216),
        ("Nemotron-H-8B", (24, 4, 24, 0), 18560, 10240),
        ("Nemotron-H-47B", (45, 5, 48, 0), 37120, 20480),
        ("Nemotron-H-56B", (54, 10, 54, 0), 37120, 20480),
        ("Nano-9B-v2", (27, 4, 25, 0), 22656, 12288),
        ("Nano-12B-v2", (28, 6, 28, 0), 22656, 12288),
        ("Nemotron-3-Nano-4B", (21, 4, 17, 0), 17504, 9728),
        ("Nemotron-3-Nano-30B-A3B", (23, 6, 0, 23), 10304, 6144),
        (LIGHTNING, (23, 6, 0, 23), 10304, 6144),
        (SUPER, (40, 8, 0, 40), 18560, 10240),
        ("Nemotron-3-Ultra-550B-A55B", (48, 12, 0, 48), 35072, 18432),
    ],
)
def test_layers_and_mixers(tmp_path, name: str, layers: tuple, in_proj_rows: int, conv_dim: int):
    spec = spec_of(tmp_path, name)
    assert tuple(spec.pattern.count(letter) for letter in "M*-E") == layers
    assert sum(layers) == len(spec.layers)
    assert (spec.mamba.in_proj_dim, spec.mamba.conv_dim) == (in_proj_rows, conv_dim)


@pytest.mark.parametrize(
    "name, tensors, elements",
    [
        ("Nemotron-3-Nano-4B", 263, None),
        (LIGHTNING, 6_513, 32_913_266_240),
        (SUPER, 42_683, 123_611_033_088),
    ],
)
def test_number_of_tensors_and_of_elements(tmp_path, name: str, tensors: int, elements: int | None):
    found = disk_tensors(spec_of(tmp_path, name))
    assert len(found) == tensors
    if elements is not None:
        assert sum(prod(shape) for shape in found.values()) == elements


@pytest.mark.parametrize(
    "name, billions",
    [
        ("Nemotron-H-4B", "4.489"),
        ("Nemotron-H-8B", "8.101"),
        ("Nemotron-H-47B", "46.79"),
        ("Nemotron-H-56B", "56.32"),
        ("Nano-9B-v2", "8.888"),
        ("Nano-12B-v2", "12.31"),
        ("Nemotron-3-Nano-4B", "3.974"),
        ("Nemotron-3-Nano-30B-A3B", "31.578"),
        (LIGHTNING, "32.913"),
        (SUPER, "123.611"),
        ("Nemotron-3-Ultra-550B-A55B", "560.525"),
    ],
)
def test_number_of_parameters(tmp_path, name: str, billions: str):
    total = sum(prod(shape) for shape in disk_tensors(spec_of(tmp_path, name)).values())
    digits = len(billions.split(".")[1])
    assert f"{total / 1e9:.{digits}f}" == billions


def test_bytes_of_super_in_its_published_dtypes(tmp_path):
    """Everything is bfloat16 but the router's biases, which are float32."""
    found = disk_tensors(spec_of(tmp_path, SUPER))
    size = sum(
        prod(shape) * (4 if name.endswith(".e_score_correction_bias") else 2)
        for name, shape in found.items()
    )
    assert size == 247_222_108_160


def test_names_and_shapes_of_lightning(tmp_path):
    found = disk_tensors(spec_of(tmp_path, LIGHTNING))
    for name, shape in {
        "backbone.embeddings.weight": (131072, 2688),
        "backbone.layers.0.mixer.in_proj.weight": (10304, 2688),
        "backbone.layers.0.mixer.conv1d.weight": (6144, 1, 4),
        "backbone.layers.0.mixer.A_log": (64,),
        "backbone.layers.1.mixer.gate.weight": (128, 2688),
        "backbone.layers.1.mixer.gate.e_score_correction_bias": (128,),
        "backbone.layers.1.mixer.experts.127.up_proj.weight": (1856, 2688),
        "backbone.layers.1.mixer.experts.127.down_proj.weight": (2688, 1856),
        "backbone.layers.1.mixer.shared_experts.up_proj.weight": (3712, 2688),
        "backbone.layers.5.mixer.k_proj.weight": (256, 2688),
        "backbone.norm_f.weight": (2688,),
        "lm_head.weight": (131072, 2688),
        "mtp.layers.0.eh_proj.weight": (2688, 5376),
        "mtp.layers.0.mixer.q_proj.weight": (4096, 2688),
        "mtp.layers.1.mixer.experts.0.up_proj.weight": (1856, 2688),
        "mtp.layers.1.final_layernorm.weight": (2688,),
    }.items():
        assert found[name] == shape
    trunk = disk_tensors(spec_of(tmp_path, "Nemotron-3-Nano-30B-A3B"))
    assert disk_tensors(spec_of(tmp_path, LIGHTNING), mtp=False) == trunk
    assert found == trunk | {n: s for n, s in found.items() if n.startswith("mtp.")}


def test_latent_experts_of_super(tmp_path):
    found = disk_tensors(spec_of(tmp_path, SUPER))
    layer = "backbone.layers.1.mixer."
    assert found[layer + "experts.511.up_proj.weight"] == (2688, 1024)
    assert found[layer + "fc1_latent_proj.weight"] == (1024, 4096)
    assert found[layer + "fc2_latent_proj.weight"] == (4096, 1024)
    assert found[layer + "gate.weight"] == (512, 4096)
    assert found[layer + "shared_experts.down_proj.weight"] == (4096, 5376)


def test_a_model_without_convolution_bias_stores_none(tmp_path):
    spec = spec_of(tmp_path, "Nemotron-3-Nano-4B")
    left = disk_tensors(spec).keys() - disk_tensors(spec, conv_bias=False).keys()
    assert left == {
        f"backbone.layers.{i}.mixer.conv1d.bias"
        for i, kind in enumerate(spec.pattern)
        if kind == "M"
    }


def write_sparse(folder: Path, tensors: dict[str, tuple[int, ...]], shards: int) -> int:
    """Writes shards whose data are holes, and their index; returns the headers' bytes."""
    weight_map, headers = {}, 0
    for i in range(shards):
        file, header, end = f"model-{i}.safetensors", {}, 0
        for name in list(tensors)[i::shards]:
            wide = name.endswith(".e_score_correction_bias")
            start, end = end, end + prod(tensors[name]) * (4 if wide else 2)
            header[name] = {
                "dtype": "F32" if wide else "BF16",
                "shape": tensors[name],
                "data_offsets": [start, end],
            }
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            f.truncate(8 + len(text) + end)
        weight_map |= dict.fromkeys(header, file)
        headers += 8 + len(text)
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    return headers


def test_a_checkpoint_of_lightnings_shapes_is_matched_by_its_headers(tmp_path, monkeypatch):
    spec = spec_of(tmp_path, LIGHTNING)
    headers = write_sparse(tmp_path, disk_tensors(spec), 13)
    shards = [file.stat() for file in tmp_path.glob("*.safetensors")]
    assert sum(s.st_size for s in shards) > 65e9
    assert sum(s.st_blocks * 512 for s in shards) < headers + len(shards) * 64 * 1024

    def refuse(file: Path):
        raise AssertionError(f"{file} was mapped, although only its header is needed")

    monkeypatch.setattr(safetensors_files, "_mapped", refuse)
    files = SafetensorsFiles.open(tmp_path)
    wanted = wanted_weights(spec, DType.bfloat16)
    warnings: list[str] = []
    inventory = take_inventory(tmp_path, files.tensors, wanted, warnings.append)
    assert warnings == []
    assert inventory.sources.keys() == wanted.keys()
    assert sum(map(len, inventory.sources.values())) == len(files.tensors) == 6_513
    up_proj = inventory.sources["layers.1.mixer.experts.up_proj"]
    assert [t.name for t in up_proj] == [
        f"backbone.layers.1.mixer.experts.{e}.up_proj.weight" for e in range(128)
    ]
