"""What the benchmarks of ops with a state share: graphs of 8 layers, states by place, programs.

The arena holds states for the batch many times over: each time is a *place*, and calls walk from
one to the next. Our pool keeps a slot's layers side by side; MAX's ops and torch see the same
memory as a pool of so many more slots, one for each slot and layer: their *homes*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from max.driver import Buffer

from bench.kernels.case import LAYERS, Benchmark, Case, GraphSpec, Work, each
from bench.kernels.graphs import BOOL, I32, U32, in_type
from bench.kernels.memory import Memory, indices, layers
from bench.kernels.timing import Program

Rival = tuple[Program, Callable[[], torch.Tensor]]
"""What is timed, and what runs the same from zero states and returns its outputs."""
Operands = Sequence[Sequence[Sequence[Buffer]]]
"""Operands of an op beside pool and plan: by place, by layer."""


@dataclass(frozen=True)
class StateShape(ABC):
    """One case: `batch` sequences of `rows` rows each, with `width` channels or heads."""

    width: int
    batch: int
    rows: int
    dtype: str = "float32"

    kernel: ClassVar[str]
    unit: ClassVar[str]
    """What `width` counts."""

    @property
    def name(self) -> str:
        what = f"decode batch {self.batch}" if self.rows == 1 else f"prefill {self.rows}"
        return f"{what}, {self.width} {self.unit}, {self.dtype}"

    @property
    def model(self) -> str:
        return f"{self.kernel}-{self.width}-{self.dtype}"

    @property
    def single(self) -> str:
        """Name of the graph of one layer."""
        return f"{self.model}-single"

    @property
    def rival(self) -> str:
        """Name of the graph of MAX's op."""
        return f"max-{self.kernel}-{self.width}"

    @property
    def tokens(self) -> int:
        return self.batch * self.rows

    @property
    @abstractmethod
    def work(self) -> Work:
        """The least work of one layer."""


def own_graph(shape: StateShape, count: int, pool: Any, layer: list[Any], op: Any) -> GraphSpec:
    """A graph of our op for the first `count` layers of the pool.

    Args:
        shape: Gives its name.
        count: 1 or all layers.
        pool: Type of the pool, [slots, layers, ...].
        layer: Types of the operands of one layer.
        op: Called with the pool, a layer's operands, the plan, and `layer`.
    """
    plan = [in_type(I32, "starts"), in_type(I32, "batch"), in_type(I32, "tokens")]

    def build(inputs: list[Any]) -> list[Any]:
        states, starts, read, write, *rest = inputs
        planned = [v.tensor for v in (starts, read, write)]
        each = len(layer)
        operands = [v.tensor for v in rest]
        return [
            op(states.buffer, *operands[i * each : (i + 1) * each], *planned, layer=i)
            for i in range(count)
        ]

    name = shape.model if count > 1 else shape.single
    return GraphSpec(name, [pool, *plan, *layer * count], build)


def rival_graph(shape: StateShape, pool: Any, layer: list[Any], op: Any) -> GraphSpec:
    """A graph of MAX's op, once for each layer, from and to slots of its own.

    Args:
        shape: Gives its name.
        pool: Type of the pool, [slots, ...].
        layer: Types of the operands of one layer.
        op: Called with a layer's operands, the pool, the starts, whether there is a state, and the
            slots.
    """
    layer = [*layer, in_type(U32, "batch")]
    types = [pool, in_type(I32, "starts"), in_type(BOOL, "batch"), *layer * LAYERS]

    def build(inputs: list[Any]) -> list[Any]:
        states, starts, old, *rest = inputs
        found = []
        for i in range(0, len(rest), len(layer)):
            *operands, slots = (v.tensor for v in rest[i : i + len(layer)])
            found.append(op(operands, states.buffer, starts.tensor, old.tensor, slots))
        return found

    return GraphSpec(shape.rival, types, build)


class Places:
    """The slots of a case's sequences at each place.

    Attributes:
        starts: Where each sequence's rows begin.
        read: Our slots, by place.
        write: Our slots after each row, by place; only the last row of a sequence has one.
        homes: The rivals' slots, by place and layer.
        walk: Returns the number of the next place.
    """

    def __init__(
        self, shape: StateShape, slots: Sequence[Sequence[int]], walk: Callable[[], int]
    ) -> None:
        before = [-1] * (shape.rows - 1)
        self.starts = indices(range(0, shape.tokens + 1, shape.rows))
        self.read = [indices(place) for place in slots]
        self.write = [indices(v for slot in s for v in (*before, slot)) for s in slots]
        self.homes = [
            [[s * LAYERS + layer for s in place] for layer in range(LAYERS)] for place in slots
        ]
        self.walk = walk


def builtin(shape: StateShape, models: Mapping[str, Any]) -> Any:
    """Returns MAX's op for a shape, which is for float32 only; None where there is none."""
    return models.get(shape.rival) if shape.dtype == "float32" else None


def builtin_rival(
    model: Any, shape: StateShape, places: Places, pool: Buffer, operands: Operands
) -> Rival:
    """MAX's op in the graph that `rival_graph` makes."""
    args = [
        [
            v
            for layer, home in zip(given, homes, strict=True)
            for v in (*layer, indices(home, torch.uint32))
        ]
        for given, homes in zip(operands, places.homes, strict=True)
    ]
    old, new = (indices([v] * shape.batch, torch.bool) for v in (True, False))
    return (
        lambda: model.execute(pool, places.starts, old, *args[places.walk()]),
        lambda: layers(model.execute(pool, places.starts, new, *args[0])),
    )


def state_case(
    shape: StateShape,
    models: Mapping[str, Any],
    places: Places,
    pool: Buffer,
    operands: Operands,
    rivals: Mapping[str, Rival],
    hot: bool,
) -> Case:
    """Makes a case of our op, in the graphs that `own_graph` makes, and its rivals.

    Args:
        shape: Of the case.
        models: The compiled graphs; one of one layer is timed where there is one.
        places: Of the states.
        pool: Our pool.
        operands: Of our op.
        rivals: By name.
        hot: Time our op at one place too.
    """
    model, single = models[shape.model], models.get(shape.single)
    given = [[v for layer in place for v in layer] for place in operands]
    starts, read, write = places.starts, places.read, places.write
    none, nowhere = indices([-1] * shape.batch), indices([-1] * shape.tokens)

    def ours() -> Any:
        i = places.walk()
        return model.execute(pool, starts, read[i], write[i], *given[i])

    def ours_hot() -> Any:
        return model.execute(pool, starts, read[0], write[0], *given[0])

    def ours_single() -> Any:
        i = places.walk()
        return single.execute(pool, starts, read[i], write[i], *operands[0][0])

    def outputs() -> dict[str, torch.Tensor]:
        found = {name: from_zero() for name, (_, from_zero) in rivals.items()}
        return found | {"ours": layers(model.execute(pool, starts, none, nowhere, *given[0]))}

    return Case(
        shape.kernel,
        shape.name,
        shape.work,
        ours,
        {name: timed for name, (timed, _) in rivals.items()},
        outputs,
        shape.tokens,
        ours_hot if hot else None,
        ours_single if single is not None and shape.rows == 1 else None,
        LAYERS,
        2e-2 if shape.dtype == "bfloat16" else 1e-3,
    )


def state_benchmark(
    shapes: Sequence[Any],
    graph: Callable[..., GraphSpec],
    rival: Callable[[Any], GraphSpec],
    case: Callable[[Any, Mapping[str, Any], Memory], Case],
) -> Benchmark:
    """Makes a benchmark of shapes, with graphs of one layer where one sequence decodes.

    Args:
        shapes: The cases.
        graph: (shape, count) -> our graph.
        rival: shape -> MAX's graph, one for each width.
        case: (shape, models, memory) -> case.
    """
    own = {shape.model: graph(shape) for shape in shapes}
    own |= {s.single: graph(s, 1) for s in shapes if s.rows == s.batch == 1}

    rivals = {shape.rival: rival(shape) for shape in shapes}
    return Benchmark([*own.values()], [*rivals.values()], each(shapes, case))
