"""The ceilings of this machine, measured beside each benchmark: memory bandwidth and FMA rate.

Time cannot be less than bytes / bandwidth, nor less than FLOP / peak; the larger of the two is the
roofline of a piece of work (Williams, Waterman, Patterson 2009). The ceilings come from ops of our
own in `roofline_ops`, since neither numpy nor torch reaches them. They are timed in the same rounds
as the kernel: on a shared machine bandwidth drifts by a third within the hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.kernels.case import GraphSpec, Pattern, Peak, Work
from bench.kernels.timing import Program

OPS = Path(__file__).resolve().parent / "roofline_ops"
PASSES: dict[Pattern, int] = {"read": 1, "update": 2, "copy": 2}
"""How often a pattern moves a byte of its window across the bus."""
CHAINS, LANES, WORKERS = 12, 16, 256
"""As in the Mojo files: FMA chains of a thread, values of a vector, length of the outputs."""
FLOP_PER_LANE: dict[Peak, int] = {"float32": 2, "bfloat16": 4}
"""FLOP per lane of a multiply-add; the bfloat16 dot product takes pairs."""


@dataclass(frozen=True)
class Ceilings:
    """What the machine did while one case was timed.

    Attributes:
        bandwidth: Bytes per microsecond, in the case's pattern, on all threads.
        peak: FLOP per microsecond, with the case's multiply-add, on all threads.
    """

    bandwidth: float
    peak: float

    @staticmethod
    def of(work: Work, memory: float, arithmetic: float, sizes: ProbeSizes) -> Ceilings:
        """Turns the probes' times, in microseconds, into rates."""
        return Ceilings(
            sizes.window * PASSES[work.pattern] / memory, sizes.flop(work.peak) / arithmetic
        )

    def floor(self, work: Work) -> float:
        """Microseconds that the work takes at least."""
        return max(work.bytes / self.bandwidth, work.flop / self.peak)

    def bound(self, work: Work) -> str:
        """Which ceiling holds: "memory" or "arithmetic"."""
        memory = work.bytes / self.bandwidth >= work.flop / self.peak
        return "memory" if memory else "arithmetic"


@dataclass(frozen=True)
class ProbeSizes:
    """How much a probe does in one call.

    Attributes:
        window: Bytes of the arena that a memory probe walks.
        iterations: Rounds of the FMA chains.
        threads: Threads that MAX runs.
    """

    window: int
    iterations: int
    threads: int

    def flop(self, peak: Peak) -> int:
        """FLOP of one call of the arithmetic probe."""
        return self.iterations * CHAINS * LANES * FLOP_PER_LANE[peak] * self.threads


def graphs() -> list[GraphSpec]:
    """Returns the graphs of the probes; they need the ops in `OPS`."""
    from max.graph import TensorType, ops

    from bench.kernels.graphs import BF16, CPU, F32, I32, I64, in_place, in_type

    def memory(pattern: str):
        result = TensorType(F32, [WORKERS], CPU) if pattern == "read" else TensorType(I32, [0], CPU)

        def build(inputs: list[Any]) -> list[Any]:
            values = [inputs[0].buffer, inputs[1].tensor]
            (y,) = ops.inplace_custom(
                f"coachwhip_bench.{pattern}", device=CPU, values=values, out_types=[result]
            )
            return [y.tensor]

        return build

    def arithmetic(inputs: list[Any]) -> list[Any]:
        values = [inputs[0].tensor, inputs[1].tensor]
        (y,) = ops.custom(
            "coachwhip_bench.multiply_add",
            device=CPU,
            values=values,
            out_types=[TensorType(F32, [WORKERS], CPU)],
        )
        return [y.tensor]

    patterns = [
        GraphSpec(f"probe-{p}", [in_place(F32, "values"), in_type(I64, 2)], memory(p))
        for p in PASSES
    ]
    peaks = [
        GraphSpec(f"probe-{d.name}", [in_type(d, 4 * LANES), in_type(I64, 1)], arithmetic)
        for d in (F32, BF16)
    ]
    return [*patterns, *peaks]


def memory_probe(models: Mapping[str, Any], memory: Any, pattern: Pattern, size: int) -> Program:
    """Returns a program that touches the next `size` bytes of the arena in a pattern."""
    import torch

    from bench.kernels.memory import buffer, indices

    model = models[f"probe-{pattern}"]
    arena = memory.arena()
    data = buffer(arena.data)
    values = size // 4
    limit = arena.data.numel() // (2 if pattern == "copy" else 1)
    windows = [indices([i * values, values], torch.int64) for i in range(max(1, limit // values))]
    return lambda: model.execute(data, windows[arena.next_block(values) % len(windows)])


def empty_call(models: Mapping[str, Any], memory: Any) -> Program:
    """Returns a call of a model that does nothing: what any call costs at least."""
    import torch

    from bench.kernels.memory import buffer, indices

    model, data = models["probe-update"], buffer(memory.arena().data)
    nothing = indices([0, 0], torch.int64)
    return lambda: model.execute(data, nothing)


def threads(models: Mapping[str, Any]) -> int:
    """Returns how many threads MAX runs: each of them leaves one value that is not zero."""
    import torch

    from bench.kernels.memory import buffer, indices, tensor

    factors = buffer(torch.full([4 * LANES], 0.5))
    one = indices([1], torch.int64)
    return int(tensor(models["probe-float32"].execute(factors, one)).count_nonzero())


def arithmetic_probe(models: Mapping[str, Any], peak: Peak, iterations: int) -> Program:
    """Returns a program that runs the FMA chains."""
    import torch

    from bench.kernels.memory import TORCH_OF, buffer, indices

    model = models[f"probe-{peak}"]
    factors = buffer(torch.full([4 * LANES], 0.5, dtype=TORCH_OF[peak]))
    count = indices([iterations], torch.int64)
    return lambda: model.execute(factors, count)
