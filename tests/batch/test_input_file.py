"""Inputs of every kind, and what is wrong with one."""

import gzip
import os
import struct
import threading

import pytest
import zstandard

from coachwhip.batch import input_file
from coachwhip.batch.input_file import BatchInput
from coachwhip.errors import BatchError

PLAIN = b'\xef\xbb\xbf{"a": 1}\r\n\n   \n{"b": 2}\n{"c": 3}'
LINES = [(1, b'{"a": 1}'), (4, b'{"b": 2}'), (5, b'{"c": 3}')]


def pzst_frames(data: bytes) -> bytes:
    """As pzstd writes them: before each a frame to skip."""
    half, packer = len(data) // 2, zstandard.ZstdCompressor()
    skip = struct.pack("<IIH", 0x184D2A50, 2, 0)
    return b"".join(skip + packer.compress(part) for part in (data[:half], data[half:]))


def zst_frames(data: bytes) -> bytes:
    half = len(data) // 2
    packer = zstandard.ZstdCompressor()
    return packer.compress(data[:half]) + packer.compress(data[half:])


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        lambda d: gzip.compress(d[:9]) + gzip.compress(d[9:]),
        zst_frames,
        pzst_frames,
    ],
    ids=["plain", "gzip", "gzip of two members", "zstd of two frames", "zstd of pzstd"],
)
def test_reads_the_same_lines_twice(tmp_path, pack):
    path = tmp_path / "in"
    path.write_bytes(pack(PLAIN))
    found = BatchInput(str(path), tmp_path)
    assert list(found.lines()) == LINES
    assert list(found.lines()) == LINES


def test_a_pipe_is_kept_to_be_read_again(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(gzip.compress(PLAIN),))
    writer.start()
    found = BatchInput(str(path), tmp_path)
    writer.join()
    assert list(found.lines()) == LINES
    assert list(found.lines()) == LINES
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("pack", [gzip.compress, zst_frames])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.999])
def test_a_damaged_file_says_where(tmp_path, pack, share):
    path = tmp_path / "in"
    packed = pack(b"".join(b'{"n": %d}\n' % i for i in range(50_000)))
    path.write_bytes(packed[: int(len(packed) * share)])
    with pytest.raises(BatchError, match=r"cannot be read after line \d+"):
        list(BatchInput(str(path), tmp_path).lines())


def test_too_long_a_line_is_refused_before_it_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(input_file, "MOST_LINE_BYTES", 1 << 20)
    path = tmp_path / "in"
    path.write_bytes(b"{}\n" + b"x" * (3 << 20))
    with pytest.raises(BatchError, match="line 2 has more than 1 MiB"):
        list(BatchInput(str(path), tmp_path).lines())


def test_a_file_that_changes_is_noticed(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(PLAIN)
    found = BatchInput(str(path), tmp_path)
    with path.open("ab") as file:
        file.write(b"\n{}")
    with pytest.raises(BatchError, match="changed while it was read"):
        list(found.lines())


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BatchError, match="cannot be read: No such file"):
        BatchInput(str(tmp_path / "missing"), tmp_path)
