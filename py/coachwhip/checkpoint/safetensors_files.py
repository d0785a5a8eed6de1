"""Finds a checkpoint's safetensors files and maps them into memory."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np

from ..errors import CheckpointError, capped
from .json_file import read_json_object
from .safetensors_header import StoredTensor, read_header

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# Without MAP_NORESERVE (which Python 3.11 does not name) Linux refuses a private mapping that is
# larger than its memory, although none of it is written.
_PRIVATE = mmap.MAP_PRIVATE | (0x4000 if sys.platform == "linux" else 0)

_CONVERT = (
    'convert it once where torch and safetensors are installed: python -c "import torch; from'
    " safetensors.torch import save_file; w = torch.load('pytorch_model.bin', weights_only=True);"
    " save_file({k: v.clone().contiguous() for k, v in w.items()}, 'model.safetensors')\""
)


class SafetensorsFiles:
    """The tensors of a checkpoint, in one file or in shards, by their stored names.

    Bytes are mapped copy-on-write: nothing is read before it is used, the files never change, and
    the pages belong to the system's cache.
    """

    def __init__(self, tensors: dict[str, StoredTensor]):
        self.tensors = tensors
        self._maps: dict[Path, tuple[mmap.mmap, np.ndarray]] = {}

    @classmethod
    def open(cls, folder: Path) -> SafetensorsFiles:
        """Reads the headers of `model.safetensors`, else of the index's shards.

        Raises:
            CheckpointError: There is neither; a shard is missing; a header is malformed; index
                and shards disagree.
        """
        if (folder / SINGLE_FILE).exists():
            return cls(read_header(folder / SINGLE_FILE))
        if (folder / INDEX_FILE).exists():
            return cls(_sharded(folder))
        if any(folder.glob("pytorch_model*.bin")):
            raise CheckpointError(
                folder, "holds only pytorch_model.bin, which is not supported", _CONVERT
            )
        others = sorted(f.name for f in folder.glob("*.safetensors"))
        if others:
            found = f"holds {', '.join(others[:3])}, but neither {SINGLE_FILE} nor {INDEX_FILE}"
            raise CheckpointError(folder, found, "a set of shards needs its index file")
        raise CheckpointError(folder, "holds no weights", f"put {SINGLE_FILE} there")

    def values(self, name: str) -> np.ndarray:
        """Returns the bytes of a tensor, [nbytes] uint8, mapped and writable (on a private copy).

        Raises:
            CheckpointError: The file cannot be mapped.
        """
        tensor = self.tensors[name]
        if not tensor.nbytes:
            return np.empty(0, np.uint8)
        if tensor.file not in self._maps:
            self._maps[tensor.file] = _mapped(tensor.file)
        mapped = self._maps[tensor.file][1][tensor.start : tensor.start + tensor.nbytes]
        if mapped.nbytes != tensor.nbytes:
            raise CheckpointError(tensor.file, "became shorter while it was read")
        return mapped

    def release(self, name: str) -> None:
        """Gives back the memory of a tensor's pages; its bytes are read again when used again.

        The pages at both ends may hold bytes of its neighbours and stay. Writes to an array that
        `values` returned are lost.
        """
        tensor = self.tensors[name]
        first = -(-tensor.start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (tensor.start + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if tensor.file in self._maps and first < end:
            self._maps[tensor.file][0].madvise(mmap.MADV_DONTNEED, first, end - first)


def _mapped(file: Path) -> tuple[mmap.mmap, np.ndarray]:
    """Maps a file, also as [bytes] uint8: writable, since DLPack exports no other array."""
    try:
        with file.open("rb") as f:
            pages = mmap.mmap(f.fileno(), 0, flags=_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError) as e:
        raise CheckpointError(file, f"cannot be mapped: {e}") from None
    return pages, np.frombuffer(pages, np.uint8)


def _sharded(folder: Path) -> dict[str, StoredTensor]:
    index = folder / INDEX_FILE
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(index, "has no weight_map from tensor names to files")
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file or Path(file).name != file:
            raise CheckpointError(index, f"weight_map of {name!r} is {file!r}, not a file name")
    shards = sorted(set(weight_map.values()))
    absent = [f"shard {shard} is missing" for shard in shards if not (folder / shard).is_file()]
    if absent:
        raise CheckpointError(folder, capped(absent), "download the missing files")
    stored = {shard: read_header(folder / shard) for shard in shards}
    problems = [
        f"tensor {name} is not in {shard}, where {INDEX_FILE} places it"
        for name, shard in weight_map.items()
        if name not in stored[shard]
    ]
    problems += [
        f"tensor {name} of {shard} is not in {INDEX_FILE}"
        for shard, tensors in stored.items()
        for name in tensors
        if name not in weight_map
    ]
    if problems:
        raise CheckpointError(
            folder, capped(problems), "index and shards come from different downloads"
        )
    return {name: stored[shard][name] for name, shard in weight_map.items()}
