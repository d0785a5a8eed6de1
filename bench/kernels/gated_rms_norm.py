"""`gated_rms_norm`: MAX's fused op and torch beside it, 8 layers per call.

The rows of y and z come from memory. In a model they were just made and lie in a cache, so a real
step is no slower than this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from max.nn.state_space import gated_group_rmsnorm
from torch.nn import functional as F

from bench.kernels.case import LAYERS, Benchmark, Case, GraphSpec, Work, each
from bench.kernels.graphs import BF16, F32, in_type
from bench.kernels.memory import TORCH_OF, Memory, buffer, layers
from coachwhip_graphs import ops as our_ops

GROUPS, EPS = 8, 1e-5


@dataclass(frozen=True)
class Shape:
    """One case: rows of `width` values in 8 groups."""

    width: int
    rows: int
    dtype: str = "float32"

    @property
    def name(self) -> str:
        return f"{self.rows} rows of {self.width}, {self.dtype}"

    @property
    def model(self) -> str:
        return f"gated_rms_norm-{self.width}-{self.dtype}"

    @property
    def work(self) -> Work:
        values = self.rows * self.width
        return Work(3 * values * TORCH_OF[self.dtype].itemsize, "copy")


def torch_norm(y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gate and the norm in float32, as the published model code has them."""
    v = y.float() * F.silu(z.float())
    groups = v.view(len(v), GROUPS, -1)
    normal = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + EPS)
    return (normal.view_as(v) * weight).to(y.dtype)


def graph(shape: Shape, rival: bool) -> GraphSpec:
    """Our norm, or MAX's, of all layers."""
    dtype = BF16 if shape.dtype == "bfloat16" else F32
    rows = in_type(dtype, "tokens", shape.width)
    types = [rows, rows, in_type(F32, shape.width)] * LAYERS

    def norm(operands: list[Any]) -> Any:
        if rival:
            return gated_group_rmsnorm(*operands, EPS, shape.width // GROUPS)
        return our_ops.gated_rms_norm(*operands, groups=GROUPS, eps=EPS)

    def build(inputs: list[Any]) -> list[Any]:
        operands = [v.tensor for v in inputs]
        return [norm(operands[3 * i : 3 * i + 3]) for i in range(LAYERS)]

    return GraphSpec(f"max-{shape.model}" if rival else shape.model, types, build)


def _case(shape: Shape, models: Mapping[str, Any], memory: Memory) -> Case:
    arena = memory.arena(shape.dtype)
    r = torch.Generator().manual_seed(3)
    weights = torch.rand(LAYERS, shape.width, generator=r) + 0.5
    norms = [buffer(w) for w in weights]
    blocks = arena.blocks(LAYERS, 2, shape.rows, shape.width)
    size = blocks[0].numel()
    # One row makes thousands of blocks; a hundred of them walk far enough apart.
    step = max(1, len(blocks) // 128)
    pairs = [blocks[i] for i in range(0, len(blocks), step)]
    given = [
        [v for (y, z), w in zip(block, norms, strict=True) for v in (buffer(y), buffer(z), w)]
        for block in pairs
    ]

    def place() -> int:
        return arena.next_block(size * step) % len(pairs)

    def run(model: Any) -> Any:
        return lambda: model.execute(*given[place()])

    def torch_norms(i: int) -> list[torch.Tensor]:
        return [torch_norm(y, z, w) for (y, z), w in zip(pairs[i], weights, strict=True)]

    programs = {"ours": models[shape.model]}
    if (builtin := models.get(f"max-{shape.model}")) is not None:
        programs["MAX builtin"] = builtin

    def outputs() -> dict[str, torch.Tensor]:
        found = {name: layers(model.execute(*given[0])) for name, model in programs.items()}
        return found | {"torch": layers(torch_norms(0))}

    rivals = {name: run(model) for name, model in programs.items()}
    ours = rivals.pop("ours")
    rivals["torch"] = lambda: torch_norms(place())
    hot = programs["ours"]
    return Case(
        "gated_rms_norm",
        shape.name,
        shape.work,
        ours,
        rivals,
        outputs,
        shape.rows,
        (lambda: hot.execute(*given[0])) if shape.rows == 1 else None,
        layers=LAYERS,
        tolerance=2e-2 if shape.dtype == "bfloat16" else 1e-3,
    )


def benchmark(quick: bool) -> Benchmark:
    """The inner width of a layer with 64 heads of 64."""
    if quick:
        shapes = [Shape(256, 4)]
    else:
        shapes = [Shape(4096, 1), Shape(4096, 32), Shape(4096, 512), Shape(4096, 512, "bfloat16")]
    kinds = {shape.model: shape for shape in shapes}.values()

    return Benchmark(
        [graph(shape, False) for shape in kinds],
        [graph(shape, True) for shape in kinds],
        each(shapes, _case),
    )
