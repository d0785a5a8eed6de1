"""Reads and checks the header of one safetensors file.

A file is an unsigned 64-bit little-endian header length, the header (JSON: name -> dtype, shape,
data_offsets), then the tensors' bytes without holes. See the format's description at
https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

from ..errors import CheckpointError
from .json_file import parse_json_object

LONGEST_HEADER_BYTES = 100_000_000
"""The format's own bound."""

ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits of one value of every dtype of the format."""

_BROKEN = "the file is damaged or not fully downloaded: get it again"


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies."""

    name: str
    dtype: str
    """The format's name: F32, BF16, F16, ..."""
    shape: tuple[int, ...]
    file: Path
    start: int
    """First byte in the file."""
    nbytes: int


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a safetensors file, checked to lie within it, without overlap.

    Raises:
        CheckpointError: The file cannot be opened, is truncated, or its header is malformed.
    """
    try:
        with file.open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            first = f.read(8)
            if first.startswith(b"version "):
                raise CheckpointError(file, "is a Git LFS pointer", "run `git lfs pull`")
            if len(first) < 8:
                raise CheckpointError(file, f"has {size} bytes, too few for a header", _BROKEN)
            length = int.from_bytes(first, "little")
            if length > min(size - 8, LONGEST_HEADER_BYTES):
                most = f"{size - 8} bytes follow and {LONGEST_HEADER_BYTES} are allowed"
                raise CheckpointError(file, f"header length is {length}, but {most}", _BROKEN)
            header = f.read(length)
    except OSError as e:
        raise CheckpointError(file, f"cannot be read: {e.strerror or e}") from None
    if len(header) < length:
        raise CheckpointError(file, f"the header ends after {len(header)} bytes", _BROKEN)
    entries = parse_json_object(header, file, "header")
    entries.pop("__metadata__", None)
    tensors = {name: _tensor(name, e, file, 8 + length) for name, e in entries.items()}
    _check_layout(list(tensors.values()), file, 8 + length, size)
    return tensors


def _tensor(name: str, entry: object, file: Path, data_start: int) -> StoredTensor:
    def fail(what: str) -> CheckpointError:
        return CheckpointError(file, f"header of tensor {name!r}: {what}", _BROKEN)

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise fail("dtype, shape and data_offsets are not all given")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        raise fail(f"unknown dtype {dtype!r}")
    if not _naturals(shape):
        raise fail(f"shape {shape!r} is not a list of sizes")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fail(f"data_offsets {offsets!r} are not [start, end]")
    nbytes = offsets[1] - offsets[0]
    if prod(shape) * ITEM_BITS[dtype] != nbytes * 8:
        raise fail(f"{nbytes} bytes do not hold shape {shape} of dtype {dtype}")
    return StoredTensor(name, dtype, tuple(shape), file, data_start + offsets[0], nbytes)


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _check_layout(tensors: list[StoredTensor], file: Path, data_start: int, size: int) -> None:
    """Checks that the tensors cover the data from its first byte to its last, each once."""
    tensors.sort(key=lambda t: (t.start, t.nbytes))
    end = tensors[-1].start + tensors[-1].nbytes if tensors else data_start
    for before, after in pairwise(tensors):
        gap = after.start - before.start - before.nbytes
        if gap:
            what = f"overlap by {-gap} bytes" if gap < 0 else f"leave a hole of {gap} bytes"
            raise CheckpointError(
                file, f"tensors {before.name!r} and {after.name!r} {what}", _BROKEN
            )
    if tensors and tensors[0].start != data_start:
        raise CheckpointError(
            file, f"the first tensor starts {tensors[0].start - data_start} bytes late", _BROKEN
        )
    if end != size:
        raise CheckpointError(file, f"has {size} bytes, but its header describes {end}", _BROKEN)
