"""`copy_rows`: copies of state slots, beside torch's indexed copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.case import Benchmark, Case, GraphSpec, Work, each
from bench.kernels.graphs import F32, I32, in_place, in_type
from bench.kernels.memory import Memory, buffer
from coachwhip_graphs import ops as our_ops

MODEL = "copy_rows-float32"


@dataclass(frozen=True)
class Shape:
    """One case: `count` slots of `values` float32 values each."""

    values: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.count} slots of {self.values * 4 / 1e6:.1f} MB"

    @property
    def work(self) -> Work:
        return Work(2 * self.count * self.values * 4, "copy")


def own_graph() -> GraphSpec:
    types = [in_place(F32, "rows", "values"), in_type(I32, "copies"), in_type(I32, "copies")]

    def build(inputs: list[Any]) -> list[Any]:
        our_ops.copy_rows(inputs[0].buffer, inputs[1].tensor, inputs[2].tensor)
        return []

    return GraphSpec(MODEL, types, build)


def _case(shape: Shape, models: Mapping[str, Any], memory: Memory) -> Case:
    arena = memory.arena()
    slots = arena.blocks(shape.values)
    size = shape.values * shape.count
    places = arena.data.numel() // size
    numbers = [
        torch.arange(i * shape.count, (i + 1) * shape.count, dtype=torch.int32)
        for i in range(places)
    ]
    given = [buffer(n) for n in numbers]
    pool = buffer(slots)
    model = models[MODEL]

    def ours() -> Any:
        source, target = arena.next_block(size), arena.next_block(size)
        return model.execute(pool, given[source], given[target])

    def torch_copy() -> Any:
        source, target = arena.next_block(size), arena.next_block(size)
        slots[numbers[target]] = slots[numbers[source]]

    def outputs() -> dict[str, torch.Tensor]:
        model.execute(pool, given[0], given[1])
        return {"ours": slots[numbers[1]], "torch indexed": slots[numbers[0]]}

    return Case(
        "copy_slots",
        shape.name,
        shape.work,
        ours,
        {"torch indexed": torch_copy},
        outputs,
        shape.count,
        tolerance=0.0,
    )


def benchmark(quick: bool) -> Benchmark:
    """Slots of four layers with 64 heads of 64 x 128."""
    shapes = [Shape(4096, 2)] if quick else [Shape(1 << 21, 1), Shape(1 << 21, 8)]

    return Benchmark([own_graph()], [], each(shapes, _case))
