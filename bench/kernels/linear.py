"""`linear`: MAX's matmul and torch's beside it, from decode to prefill.

The weight comes from memory in each call, as it does in a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from bench.kernels.case import Benchmark, Case, GraphSpec, Work, each
from bench.kernels.graphs import BF16, F32, in_type
from bench.kernels.memory import TORCH_OF, Memory, buffer, in_panels, tensor
from coachwhip_graphs import ops as our_ops
from coachwhip_graphs.matrix import Matrix
from coachwhip_graphs.panels import panels_shape


@dataclass(frozen=True)
class Shape:
    """One case: y [m, n] = x [m, k] times w [n, k] transposed."""

    m: int
    k: int
    n: int
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.m} x {self.k} x {self.n}, {self.dtype}"

    @property
    def model(self) -> str:
        return f"linear-{self.k}-{self.n}-{self.dtype}"

    @property
    def work(self) -> Work:
        flop = 2 * self.m * self.k * self.n
        size = TORCH_OF[self.dtype].itemsize
        return Work(self.k * self.n * size, "read", flop, self.dtype, flop)


def graph(shape: Shape, rival: bool) -> GraphSpec:
    dtype = BF16 if shape.dtype == "bfloat16" else F32
    matrix = (shape.n, shape.k)
    stored = matrix if rival else panels_shape(matrix, dtype.size_in_bytes)
    types = [in_type(dtype, "m", shape.k), in_type(dtype, *stored)]

    def build(inputs: list[Any]) -> list[Any]:
        x, w = (v.tensor for v in inputs)
        return [x @ w.T if rival else our_ops.linear(x, Matrix(w, matrix))]

    return GraphSpec(f"max-{shape.model}" if rival else shape.model, types, build)


def _case(shape: Shape, models: Mapping[str, Any], memory: Memory) -> Case:
    arena = memory.arena(shape.dtype)
    weights = arena.blocks(shape.n, shape.k)
    size = weights[0].numel()
    x = torch.randn(shape.m, shape.k, generator=torch.Generator().manual_seed(4))
    x = (x / shape.k**0.5).to(weights.dtype)
    row = buffer(x)
    first = {"ours": buffer(in_panels(weights[0])), "MAX matmul": buffer(weights[0])}
    # What values a block holds does not matter to the clock, only its bytes.
    panels = weights.view(len(weights), *panels_shape(weights[0].shape, weights.itemsize))
    given = {
        "ours": [buffer(w) for w in panels],
        "MAX matmul": [buffer(w) for w in weights],
    }
    programs = {"ours": models[shape.model]}
    if (builtin := models.get(f"max-{shape.model}")) is not None:
        programs["MAX matmul"] = builtin

    def run(name: str, model: Any) -> Any:
        return lambda: model.execute(row, given[name][arena.next_block(size)])

    def outputs() -> dict[str, torch.Tensor]:
        found = {name: tensor(m.execute(row, first[name])).float() for name, m in programs.items()}
        return found | {"torch linear": F.linear(x, weights[0]).float()}

    rivals = {name: run(name, model) for name, model in programs.items()}
    ours = rivals.pop("ours")
    rivals["torch linear"] = lambda: F.linear(x, weights[arena.next_block(size)])
    return Case(
        "linear",
        shape.name,
        shape.work,
        ours,
        rivals,
        outputs,
        shape.m,
        tolerance=2e-2 if shape.dtype == "bfloat16" else 1e-3,
    )


def benchmark(quick: bool) -> Benchmark:
    """The input projection of a layer with 64 heads, hidden size 2688."""
    dtypes = ("float32", "bfloat16")
    if quick:
        shapes = [Shape(m, 256, 384, d) for d in dtypes for m in (1, 32)]
    else:
        shapes = [Shape(m, 2688, 10304, d) for d in dtypes for m in (1, 4, 32, 512)]
    kinds = {shape.model: shape for shape in shapes}.values()

    return Benchmark(
        [graph(shape, False) for shape in kinds],
        [graph(shape, True) for shape in kinds],
        each(shapes, _case),
    )
