"""The report of a run: tables for people, JSON for programs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.kernels.demands import demands
from bench.kernels.result import Result
from bench.kernels.timing import Timing


@dataclass(frozen=True)
class Report:
    """All results of a run, and the machine they are from."""

    machine: dict[str, Any]
    results: Sequence[Result]
    quick: bool

    def ceilings(self) -> dict[str, float]:
        """Medians over the cases: GB/s by pattern, GFLOP/s by type."""
        found: dict[str, list[float]] = {}
        for result in self.results:
            work, rates = result.work, result.ceilings
            found.setdefault(f"{work.pattern} GB/s", []).append(rates.bandwidth / 1e3)
            found.setdefault(f"{work.peak} GFLOP/s", []).append(rates.peak / 1e3)
        return {name: statistics.median(values) for name, values in found.items()}

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "machine": self.machine,
            "quick": self.quick,
            "ceilings": self.ceilings(),
            "results": [result.to_json() for result in self.results],
            "demands": [asdict(d) | {"met": d.met} for d in demands(self.results)],
        }


def _us(timing: Timing) -> str:
    return f"{timing.median:,.1f}"


def _times(result: Result) -> str:
    return "\n".join(
        f"{name}: {_us(timing)} "
        f"({result.times_faster(name):.1f}x, {result.best_times_faster(name):.1f}x)"
        for name, timing in result.rivals.items()
    )


def table(report: Report) -> Table:
    """One row per case; times are medians in microseconds per layer."""
    shown = Table(title="Kernels, microseconds per layer", show_lines=True)
    for name in ("kernel", "case"):
        shown.add_column(name, overflow="fold")
    for name in ("median", "min", "n", "per token", "roofline", "share", "best", "slots"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("others, and how many times ours they take", no_wrap=True)
    for r in report.results:
        more = f"\nhot {_us(r.hot)}" if r.hot else ""
        more += f"\none call {_us(r.single)}" if r.single else ""
        slots = "" if r.share_of_slots is None else f"{r.share_of_slots:.0%}"
        shown.add_row(
            r.kernel,
            r.case if r.layers == 1 else f"{r.case}; {r.layers} layers per call",
            _us(r.ours) + more,
            f"{r.ours.min:,.1f}",
            str(r.ours.n),
            f"{r.us_per_token:,.2f}",
            f"{r.floor:,.1f} {r.bound[:3]}",
            f"{r.share:.0%}",
            f"{r.best_share:.0%}",
            slots,
            _times(r),
        )
    return shown


def demand_table(report: Report) -> Table | None:
    """What was demanded and reached; None when nothing that ran has a demand on it."""
    asked = demands(report.results)
    if not asked:
        return None
    shown = Table(title="Demands")
    for name in ("kernel", "case", "what"):
        shown.add_column(name)
    for name in ("least", "measured", "", "by minima"):
        shown.add_column(name, justify="right")
    for d in asked:
        met = "met" if d.met else "missed"
        shown.add_row(
            d.kernel, d.case, d.what, f"{d.least:g}", f"{d.measured:.2f}", met, f"{d.best:.2f}"
        )
    return shown


def show(report: Report, console: Console) -> None:
    """Prints the report."""
    about = report.machine
    console.print(
        f"{about['cpu']}, {about['threads']} threads, load average {about['load_average']}; "
        + ", ".join(f"{name} {value}" for name, value in about["versions"].items())
    )
    rates = [
        f"{name.split()[0]} {v:.1f} {name.split()[1]}" for name, v in report.ceilings().items()
    ]
    console.print(
        f"Ceilings, measured beside the kernels: {', '.join(rates)}; "
        f"an empty call: {about['empty_call_us']['median']:.1f} us"
    )
    console.print(table(report))
    console.print(
        "roofline: time at the measured bandwidth (mem) or FMA rate (ari), the larger; share: of "
        "it, by medians; best: by minima, which others on the machine disturb least. "
        "slots: share of the multiply-add instructions that could have run meanwhile; the scan "
        "counts 5 FLOP for each state value and row, which take 3 instructions for 16 values. "
        "hot: the same data in each call. (a, b): times ours, by medians and by minima. "
        "layers per call: a call runs the op once for each layer and its time is divided by them, "
        "since a model's step is one call too; MAX's ops run in the same way, torch from a loop in "
        "Python. one call: a call that runs the op once."
    )
    if report.quick:
        console.print("quick: sizes are tiny; these numbers say nothing about speed.")
    if (asked := demand_table(report)) is not None:
        console.print(asked)
