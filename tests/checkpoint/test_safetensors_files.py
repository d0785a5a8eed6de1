"""Safetensors files are read whole, and every damage is an error that names the file."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from coachwhip.checkpoint.safetensors_files import INDEX_FILE, SINGLE_FILE, SafetensorsFiles
from coachwhip.checkpoint.safetensors_header import read_header
from coachwhip.errors import CheckpointError
from tests.reference.checkpoints import save_shards

TENSORS = {
    "a.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b.weight": torch.arange(6).bfloat16(),
    "c": torch.tensor(2.5).half(),
    "d": torch.zeros(0, 7),
}


def raw_file(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: object, shape: object, start: object, end: object) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def fails(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFiles.open(folder)
    return str(caught.value)


def fails_on(folder: Path, data: bytes) -> str:
    (folder / SINGLE_FILE).write_bytes(data)
    text = fails(folder)
    assert SINGLE_FILE in text
    assert text.isprintable()
    return text


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_tensors_of_one_file_and_of_shards(tmp_path, shards: int):
    save_shards(tmp_path, TENSORS, shards)
    files = SafetensorsFiles.open(tmp_path)
    assert files.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert files.tensors[name].shape == tuple(tensor.shape)
        expected = tensor.reshape(-1).view(torch.uint8).numpy()
        np.testing.assert_array_equal(files.values(name), expected)
    assert {t.dtype for t in files.tensors.values()} == {"F32", "BF16", "F16"}


def test_one_file_wins_over_an_index(tmp_path):
    save_shards(tmp_path, TENSORS, 2)
    save_shards(tmp_path, {"only": torch.zeros(1)}, 1)
    assert list(SafetensorsFiles.open(tmp_path).tensors) == ["only"]


def test_writing_to_a_mapped_tensor_never_reaches_the_file(tmp_path):
    save_shards(tmp_path, TENSORS, 1)
    before = (tmp_path / SINGLE_FILE).read_bytes()
    SafetensorsFiles.open(tmp_path).values("a.weight")[:] = 0xFF
    assert (tmp_path / SINGLE_FILE).read_bytes() == before


def test_a_file_larger_than_memory_is_mapped(tmp_path):
    rows = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4 + (1 << 30)
    header = raw_file({"a": entry("F32", [rows], 0, 4 * rows)})
    with (tmp_path / SINGLE_FILE).open("wb") as f:
        f.write(header)
        f.truncate(len(header) + 4 * rows)  # a hole: no disk is used
    values = SafetensorsFiles.open(tmp_path).values("a")
    assert values.nbytes == 4 * rows
    assert values[-1] == 0


def test_a_file_that_shrinks_after_its_header_was_read(tmp_path):
    save_shards(tmp_path, TENSORS, 1)
    files = SafetensorsFiles.open(tmp_path)
    path = tmp_path / SINGLE_FILE
    path.write_bytes(path.read_bytes()[:-4])
    last = max(files.tensors.values(), key=lambda t: t.start * (t.nbytes > 0))
    with pytest.raises(CheckpointError, match="became shorter"):
        files.values(last.name)


def test_a_file_that_vanishes_after_its_header_was_read(tmp_path):
    save_shards(tmp_path, TENSORS, 1)
    files = SafetensorsFiles.open(tmp_path)
    (tmp_path / SINGLE_FILE).unlink()
    with pytest.raises(CheckpointError, match="cannot be mapped"):
        files.values("a.weight")


def test_every_truncation_is_an_error(tmp_path):
    save_file(TENSORS, tmp_path / SINGLE_FILE, metadata={"format": "pt"})
    whole = (tmp_path / SINGLE_FILE).read_bytes()
    for length in range(len(whole)):
        assert "get it again" in fails_on(tmp_path, whole[:length])


@pytest.mark.parametrize(
    "data, problem",
    [
        (b"", "has 0 bytes, too few for a header"),
        (b"1234567", "has 7 bytes, too few for a header"),
        (raw_file({}, length=1 << 40), "header length is 1099511627776, but 2 bytes follow"),
        (raw_file({}, length=3), "header length is 3, but 2 bytes follow"),
        (raw_file(b"[]"), "header is a list, but must be a JSON object"),
        (raw_file(b'{"a": '), "header line 1 column 7"),
        (raw_file(b'{"\xff": 1}'), "byte 0xff is not UTF-8"),
        (raw_file(b'{"a": 1, "a": 1}'), "gives the key 'a' twice"),
        (raw_file({"a": 1}), "tensor 'a': dtype, shape and data_offsets are not all given"),
        (raw_file({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)), "not all given"),
        (raw_file({"a": entry("F33", [1], 0, 4)}, bytes(4)), "unknown dtype 'F33'"),
        (raw_file({"a": entry(["F32"], [1], 0, 4)}, bytes(4)), "unknown dtype ['F32']"),
        (raw_file({"a": entry("F32", [-1], 0, 4)}, bytes(4)), "shape [-1] is not a list of sizes"),
        (raw_file({"a": entry("F32", 1, 0, 4)}, bytes(4)), "shape 1 is not a list of sizes"),
        (raw_file({"a": entry("F32", [1.0], 0, 4)}, bytes(4)), "shape [1.0] is not a list"),
        (raw_file({"a": entry("F32", [True], 0, 4)}, bytes(4)), "shape [True] is not a list"),
        (raw_file({"a": entry("F32", [1], 4, 0)}, bytes(4)), "[4, 0] are not [start, end]"),
        (raw_file({"a": entry("F32", [1], 0, None)}, bytes(4)), "are not [start, end]"),
        (raw_file({"a": entry("F32", [2], 0, 4)}, bytes(4)), "4 bytes do not hold shape [2]"),
        (raw_file({"a": entry("BF16", [1], 0, 4)}, bytes(4)), "not hold shape [1] of dtype BF16"),
        (raw_file({"a": entry("F32", [1], 0, 4)}, bytes(3)), "but its header describes"),
        (raw_file({"a": entry("F32", [1], 0, 4)}, bytes(5)), "but its header describes"),
        (raw_file({"a": entry("F32", [1], 4, 8)}, bytes(8)), "first tensor starts 4 bytes late"),
        (raw_file({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, bytes(6)),
         "tensors 'a' and 'b' overlap by 2 bytes"),
        (raw_file({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, bytes(4)),
         "tensors 'a' and 'b' overlap by 4 bytes"),
        (raw_file({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 6, 10)}, bytes(10)),
         "tensors 'a' and 'b' leave a hole of 2 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
    ],
)  # fmt: skip
def test_damages(tmp_path, data: bytes, problem: str):
    assert problem in fails_on(tmp_path, data)


def test_a_header_of_no_tensors_is_no_damage(tmp_path):
    (tmp_path / SINGLE_FILE).write_bytes(raw_file({"__metadata__": {"format": "pt"}}))
    assert SafetensorsFiles.open(tmp_path).tensors == {}


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / SINGLE_FILE).mkdir()
    assert "cannot be read" in fails(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read_header(tmp_path / "absent.safetensors")


def test_a_folder_without_weights(tmp_path):
    assert "holds no weights" in fails(tmp_path)


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    text = fails(tmp_path)
    assert "pytorch_model.bin, which is not supported" in text
    assert "save_file" in text
    assert text.isprintable()


def test_the_way_to_convert_pickled_weights_works(tmp_path, monkeypatch):
    tied = torch.ones(2, 3)
    torch.save({"a": tied, "b": tied, "c": torch.zeros(4)[::2]}, tmp_path / "pytorch_model.bin")
    command = fails(tmp_path).split('python -c "')[1].split('"')[0]
    monkeypatch.chdir(tmp_path)
    exec(command, {})
    assert SafetensorsFiles.open(tmp_path).tensors.keys() == {"a", "b", "c"}


def test_shards_without_an_index(tmp_path):
    save_shards(tmp_path, TENSORS, 2)
    (tmp_path / INDEX_FILE).unlink()
    text = fails(tmp_path)
    assert "model-00001-of-00002.safetensors" in text
    assert INDEX_FILE in text


def test_every_missing_shard_is_named(tmp_path):
    save_shards(tmp_path, TENSORS, 3)
    for i in (1, 3):
        (tmp_path / f"model-{i:05d}-of-00003.safetensors").unlink()
    text = fails(tmp_path)
    assert "shard model-00001-of-00003.safetensors is missing" in text
    assert "shard model-00003-of-00003.safetensors is missing" in text
    assert "00002" not in text


def rewrite_index(folder: Path, change) -> None:
    index = json.loads((folder / INDEX_FILE).read_text())
    change(index["weight_map"])
    (folder / INDEX_FILE).write_text(json.dumps(index))


def test_index_and_shards_that_disagree(tmp_path):
    save_shards(tmp_path, TENSORS, 2)
    rewrite_index(tmp_path, lambda m: m.update(e=m["c"]) or m.pop("b.weight"))
    text = fails(tmp_path)
    assert "tensor e is not in model-00001-of-00002.safetensors" in text
    assert "tensor b.weight of model-00002-of-00002.safetensors is not in" in text


def test_a_tensor_of_two_shards_is_taken_from_where_the_index_says(tmp_path):
    save_shards(tmp_path, TENSORS, 2)
    second = tmp_path / "model-00002-of-00002.safetensors"
    save_file({"b.weight": TENSORS["b.weight"], "c": torch.tensor(9.0), "d": TENSORS["d"]}, second)
    assert SafetensorsFiles.open(tmp_path).tensors["c"].file.name.startswith("model-00001")


@pytest.mark.parametrize("name", ["../x.safetensors", "a/b", "/etc/passwd", "", 3, None, ".."])
def test_an_index_cannot_leave_its_folder(tmp_path, name: object):
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": name}}))
    text = fails(tmp_path)
    assert "weight_map of 'a'" in text or "is missing" in text


@pytest.mark.parametrize("index", ['{"weight_map": []}', "{}", '{"weight_map": {}}', "[]", "{"])
def test_broken_indices(tmp_path, index: str):
    (tmp_path / INDEX_FILE).write_text(index)
    assert INDEX_FILE in fails(tmp_path)


def test_a_damaged_shard_is_named(tmp_path):
    save_shards(tmp_path, TENSORS, 2)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert shard.name in fails(tmp_path)


def test_pages_are_given_back_but_not_those_of_neighbours(tmp_path):
    tensors = {name: torch.full((5000,), i, dtype=torch.int32) for i, name in enumerate("abc")}
    save_shards(tmp_path, tensors, 1)
    files = SafetensorsFiles.open(tmp_path)
    a, b, c = (files.values(name).view(np.int32) for name in "abc")
    for values in (a, b, c):
        values[:] = 9  # on a private copy, which alone shows what happens to a page
    files.release("b")
    assert (a == 9).all()
    assert (c == 9).all()
    page = mmap.PAGESIZE // 4
    assert (b[page:-page] == 1).all()
    assert (b == 1).sum() % page == 0


def test_tensors_smaller_than_a_page_stay(tmp_path):
    save_shards(tmp_path, TENSORS, 1)
    files = SafetensorsFiles.open(tmp_path)
    files.release("a.weight")  # before anything is mapped
    values = files.values("a.weight")
    values[:] = 7
    for name in TENSORS:
        files.release(name)
    assert (values == 7).all()
