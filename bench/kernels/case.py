"""What one benchmark is made of: the work, the programs that do it, and how their results differ.

A kernel's file makes `Benchmark`s; nothing here knows any kernel, MAX or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.kernels.timing import Program

LAYERS = 8
"""Layers that one call handles in the benchmarks of a layer's ops; powers of two divide evenly.

A model's step is one call that runs dozens of ops, so what a call costs is no part of an op. One
graph therefore holds an instance of the op for each layer, with its own inputs and its own layer of
the pool; a call is timed and divided by the layers. MAX's ops get the same graph; torch runs one
layer after the other from Python, as its users do. `Case.ours_single` is a graph of one instance.
"""
Pattern = Literal["read", "update", "copy"]
"""How memory is touched: read once; read and written in place; read here and written there."""
Peak = Literal["float32", "bfloat16"]
"""Which multiply-add is the ceiling."""


@dataclass(frozen=True)
class Work:
    """What has to be done at least, whoever does it.

    `bytes` counts what has to cross the memory bus: the operands that the benchmark rotates, read
    plus written. `flop` counts a multiply-add as two. `slots` counts FLOP as instructions do: two
    for each lane of each multiply, add or multiply-add; 0 where it is not of interest.
    """

    bytes: int
    pattern: Pattern
    flop: int = 0
    peak: Peak = "float32"
    slots: int = 0


@dataclass(frozen=True)
class Case:
    """One shape of one kernel: our program, its rivals, and a check that they agree.

    A call of `ours`, `ours_hot` or a rival does `work` once for each of `layers` layers.
    `ours_hot` repeats the same data in each call, where `ours` rotates; `ours_single` does one
    layer per call and rotates. `outputs` runs everything once from equal inputs and returns
    float32 arrays by name, ours as "ours"; the largest difference between them may be `tolerance`
    times the largest value. `tokens` is what one layer handles, for the time per token and layer.
    """

    kernel: str
    name: str
    work: Work
    ours: Program
    rivals: Mapping[str, Program]
    outputs: Callable[[], Mapping[str, Any]]
    tokens: int
    ours_hot: Program | None = None
    ours_single: Program | None = None
    layers: int = 1
    tolerance: float = 1e-3


@dataclass(frozen=True)
class GraphSpec:
    """A MAX graph: its name, input types, and what builds its outputs from its inputs."""

    name: str
    types: list[Any]
    build: Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class Benchmark:
    """A kernel's graphs and, once they are compiled, its cases.

    `own` graphs use ops of coachwhip; `rivals` are MAX's own and are compiled apart, so that a
    change of our kernels leaves them in MAX's cache. `cases` gets the models by name and the
    memory to work in, and makes the data of one case at a time; a rival whose model is missing is
    left out.
    """

    own: list[GraphSpec]
    rivals: list[GraphSpec]
    cases: Callable[[Mapping[str, Any], Any], Iterator[Case]] = field(repr=False)


def each(
    shapes: Sequence[Any], case: Callable[[Any, Mapping[str, Any], Any], Case]
) -> Callable[[Mapping[str, Any], Any], Iterator[Case]]:
    """Returns the `cases` of a benchmark: one for each shape, made when its turn comes.

    Args:
        shapes: What differs between the cases.
        case: (shape, models, memory) -> case.
    """

    def cases(models: Mapping[str, Any], memory: Any) -> Iterator[Case]:
        for shape in shapes:
            yield case(shape, models, memory)

    return cases
