"""GPUs by name, by memory, and as the driver lists them; memory of a container."""

from pathlib import Path

import pytest

from coachwhip.config import machine as module
from coachwhip.config import memory_bytes, this_machine
from coachwhip.config.machine import GPUS, Gpu, driver_gpu, named_gpu
from coachwhip.errors import ConfigError


@pytest.mark.parametrize(
    "text, name",
    [
        ("H100", "H100"),
        ("h100", "H100"),
        ("H100 80GB", "H100"),
        ("nvidia-h200", "H200"),
        ("a100-80gb", "A100 80GB"),
        ("A100 40GB", "A100 40GB"),
        ("l4", "L4"),
        ("L40S", "L40S"),
        ("4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("GeForce RTX 5090", "RTX 5090"),
        ("b200", "B200"),
    ],
)
def test_a_gpu_by_name(text, name):
    assert named_gpu(text) == Gpu(name, GPUS[name])


def test_every_known_name_names_itself():
    for name, size in GPUS.items():
        assert named_gpu(name) == named_gpu(name.lower()) == Gpu(name, size)


def test_a_gpu_by_its_memory():
    assert named_gpu("80GB").memory_bytes == 80 * 10**9
    assert named_gpu("24GiB").memory_bytes == 24 << 30


@pytest.mark.parametrize(
    "text, part",
    [
        ("A100", "A100 80GB or A100 40GB"),
        ("H101", "H100"),
        ("potato", "B200"),
        ("", "B200"),
        ("0.5", "80GB"),
    ],
)
def test_what_names_no_single_gpu_is_refused(text, part):
    with pytest.raises(ConfigError) as error:
        named_gpu(text)
    assert error.value.field == "gpu" and part in str(error.value)


@pytest.mark.parametrize(
    "model, size",
    [
        ("NVIDIA H200", 141),
        ("NVIDIA H100 80GB HBM3", 80),
        ("NVIDIA A100-SXM4-80GB", 80),
        ("NVIDIA A100-PCIE-40GB", 40),
        ("NVIDIA GeForce RTX 4090", 24),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA L40S", 48),
        ("NVIDIA Z9000", None),
    ],
)
def test_the_gpu_that_the_driver_lists(tmp_path: Path, monkeypatch, model, size):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert driver_gpu(tmp_path) is None
    folder = tmp_path / "0000:01:00.0"
    folder.mkdir()
    (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 71\n")
    assert driver_gpu(tmp_path) == Gpu(model, None if size is None else size * 10**9)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert driver_gpu(tmp_path) is None


def test_the_memory_of_a_container_counts_where_it_is_less(tmp_path: Path, monkeypatch):
    file = tmp_path / "memory.max"
    monkeypatch.setattr(module, "_CGROUPS", (file, tmp_path / "none"))
    physical = memory_bytes()
    assert physical > 1 << 28
    for text, want in ((str(1 << 28), 1 << 28), ("max\n", physical), (str(1 << 62), physical)):
        file.write_text(text)
        assert memory_bytes() == want
    assert this_machine(None).memory_bytes == physical and this_machine(None).cores >= 1
