"""Memory larger than any cache, in which benchmarks keep what must come from DRAM.

All programs of a benchmark walk through the same arena, block by block: what a call touches was
last touched one whole walk ago, by whichever program.
"""

from __future__ import annotations

import torch
from max.driver import Buffer

from coachwhip.checkpoint.to_panels import to_panels

TORCH_OF = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def buffer(tensor: torch.Tensor) -> Buffer:
    """Returns a MAX buffer that shares the tensor's memory; the tensor must be contiguous."""
    return Buffer.from_dlpack(tensor)


def in_panels(weight: torch.Tensor) -> torch.Tensor:
    """Returns a matrix, or a stack of them, as our products take it; see `to_panels`."""
    held = weight.view(torch.uint16) if weight.dtype == torch.bfloat16 else weight
    return torch.from_numpy(to_panels(held.numpy())).view(weight.dtype)


def indices(values, dtype: torch.dtype = torch.int32) -> Buffer:
    """Returns a MAX buffer of integers."""
    return buffer(torch.tensor(list(values), dtype=dtype))


def tensor(model_output) -> torch.Tensor:
    """Returns a model's first output as a torch tensor that shares its memory."""
    return torch.from_dlpack(model_output[0])


def layers(model_output) -> torch.Tensor:
    """Returns a model's outputs, one per layer, as one float32 tensor `[layers * tokens, ...]`."""
    return torch.cat([torch.from_dlpack(y).flatten(1).float() for y in model_output])


class Arena:
    """One large array of a type, and a cursor that walks through it.

    Attributes:
        data: The values, normally distributed.
    """

    def __init__(self, dtype: torch.dtype, nbytes: int) -> None:
        values = nbytes // dtype.itemsize
        seed = torch.randn(min(values, 1 << 20), generator=torch.Generator().manual_seed(0))
        self.data = seed.to(dtype).repeat(-(-values // seed.numel()))[:values].contiguous()
        self._cursor = 0

    def blocks(self, *shape: int) -> torch.Tensor:
        """Returns the arena as `[blocks, *shape]`; raises ValueError when not one block fits."""
        size = torch.Size(shape).numel()
        count = self.data.numel() // size
        if not count:
            raise ValueError(f"shape is {shape}, more than the arena's {self.data.numel()} values")
        return self.data[: count * size].view(count, *shape)

    def next_block(self, size: int) -> int:
        """Returns the number of the next block of `size` values, and walks past it."""
        block = -(-self._cursor // size)
        if (block + 1) * size > self.data.numel():
            block = 0
        self._cursor = (block + 1) * size
        return block


class Memory:
    """An arena for each type, made when first asked for.

    Attributes:
        nbytes: Bytes of each arena.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._arenas: dict[str, Arena] = {}

    def arena(self, dtype: str = "float32") -> Arena:
        """Returns the arena of "float32" or "bfloat16"."""
        if dtype not in self._arenas:
            self._arenas[dtype] = Arena(TORCH_OF[dtype], self.nbytes)
        return self._arenas[dtype]
