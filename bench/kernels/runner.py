"""Compiles the graphs of the benchmarks, checks that all programs agree, and times them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from max.driver import CPU
from max.engine import InferenceSession

from bench.kernels import roofline
from bench.kernels.case import Benchmark, Case
from bench.kernels.graphs import compiled
from bench.kernels.machine import machine
from bench.kernels.memory import Memory
from bench.kernels.report import Report
from bench.kernels.result import Result
from bench.kernels.timing import interleave
from coachwhip.locate import kernels_dir
from coachwhip.team import start_team

MB = 1 << 20


@dataclass(frozen=True)
class Effort:
    """How much memory and time a run takes.

    Attributes:
        arena: Bytes of the arena, more than any cache.
        window: Bytes of it that a memory probe touches per call.
        iterations: Rounds of the arithmetic probe.
        budget: Seconds per case.
        fewest: Rounds per case at least.
    """

    arena: int
    window: int
    iterations: int
    budget: float
    fewest: int


FULL = Effort(512 * MB, 64 * MB, 400_000, 5.0, 8)
QUICK = Effort(16 * MB, 1 * MB, 50_000, 0.05, 2)


def difference(outputs: Mapping[str, Any]) -> float:
    """Returns the largest difference from our output, relative to our largest value; NaN if any."""
    ours = outputs["ours"]
    largest = max(float(ours.abs().max()), 1e-30)
    # torch's maximum of a NaN is NaN, Python's need not be.
    return float(torch.stack([(y - ours).abs().max() for y in outputs.values()]).max()) / largest


def measured(case: Case, models: Mapping[str, Any], memory: Memory, effort: Effort) -> Result:
    """Checks and times one case.

    Raises:
        ArithmeticError: A rival's result differs from ours by more than the case's tolerance.
    """
    off = difference(case.outputs())
    if not off <= case.tolerance:
        raise ArithmeticError(
            f"{case.kernel}, {case.name}: results differ by {off:.1e} of the largest value, "
            f"allowed {case.tolerance:.0e}; one of the programs is wrong"
        )
    sizes = roofline.ProbeSizes(effort.window, effort.iterations, roofline.threads(models))
    pattern, peak = case.work.pattern, case.work.peak
    memory_probe = roofline.memory_probe(models, memory, pattern, effort.window)
    programs = {
        "ours": case.ours,
        "memory probe": memory_probe,
        "arithmetic probe": roofline.arithmetic_probe(models, peak, effort.iterations),
        **case.rivals,
    }
    if case.ours_hot:
        programs["ours, hot"] = case.ours_hot
    if case.ours_single:
        programs["ours, single"] = case.ours_single
    times = interleave(programs, budget=effort.budget, fewest=effort.fewest)
    single = times.pop("ours, single", None)
    bus, units = times.pop("memory probe"), times.pop("arithmetic probe")
    times = {name: timing.of_each(case.layers) for name, timing in times.items()}
    return Result(
        case.kernel,
        case.name,
        case.tokens,
        case.work,
        case.layers,
        ours=times.pop("ours"),
        hot=times.pop("ours, hot", None),
        single=single,
        rivals=times,
        ceilings=roofline.Ceilings.of(case.work, bus.median, units.median, sizes),
        best_ceilings=roofline.Ceilings.of(case.work, bus.min, units.min, sizes),
        difference=off,
    )


def run(kernels: Sequence[str], *, quick: bool, say: Callable[[str], None]) -> Report:
    """Runs the benchmarks of kernels.

    Args:
        kernels: Modules of `bench.kernels`, by name.
        quick: Small sizes, few rounds, and torch as the only rival: to see that all works.
        say: Is told what happens meanwhile.

    Returns:
        The report.
    """
    effort = QUICK if quick else FULL
    benchmarks: list[Benchmark] = [
        import_module(f"bench.kernels.{name}").benchmark(quick) for name in kernels
    ]
    session = InferenceSession(devices=[CPU()])
    start_team(session)
    say("Compiling the kernels (minutes when cold)")
    own = [*roofline.graphs(), *(spec for b in benchmarks for spec in b.own)]
    models = compiled(session, own, [kernels_dir(), roofline.OPS])
    if not quick:
        say("Compiling MAX's own ops, to compare with")
        models |= compiled(session, [spec for b in benchmarks for spec in b.rivals], [])
    memory = Memory(effort.arena)
    empty = interleave({"empty": roofline.empty_call(models, memory)}, budget=effort.budget / 10)
    about = machine(roofline.threads(models), empty["empty"])
    results = []
    for benchmark in benchmarks:
        for case in benchmark.cases(models, memory):
            say(f"{case.kernel}: {case.name}")
            results.append(measured(case, models, memory, effort))
    return Report(about, results, quick)
