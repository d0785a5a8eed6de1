"""What the kernels have to reach, in one run of the full benchmarks.

For `conv1d` at decode, torch means its standard way: windows by slot, `F.conv1d` with groups, SiLU,
windows back. A product and a sum do the same for a single row and take less; that form is timed as
well, and no demand is on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.kernels.result import Result


@dataclass(frozen=True)
class Demand:
    """One demand and what was measured, by medians and, as `best`, by minima."""

    kernel: str
    case: str
    what: str
    least: float
    measured: float
    best: float

    @property
    def met(self) -> bool:
        """Whether the medians meet it."""
        return self.measured >= self.least


Asked = tuple[str, float, float, float]
"""What, at least how much, by medians, by minima."""


def _times(result: Result, what: str, least: float, rival: str) -> Asked:
    return what, least, result.times_faster(rival), result.best_times_faster(rival)


def _decode(result: Result) -> Iterator[Asked]:
    if result.kernel == "conv1d":
        yield _times(result, "times torch's convolution", 5, "torch conv1d")
        return
    if "MAX builtin" in result.rivals:
        yield _times(result, "times MAX's builtin scan", 10, "MAX builtin")
    yield _times(result, "times the plain torch step", 15, "torch step")
    if "batch 32" in result.case:
        yield "share of the memory bandwidth", 0.8, result.share, result.best_share


def _prefill(result: Result) -> Iterator[Asked]:
    if " 64 heads" in result.case and "MAX builtin" in result.rivals:
        yield _times(result, "times MAX's builtin scan", 10, "MAX builtin")
    if " 40 heads" in result.case:
        ours, flop = result.ours, result.work.flop
        if result.us_per_token > 6:
            share = flop / ours.median / result.ceilings.peak
            best = flop / ours.min / result.best_ceilings.peak
            yield "share of the FMA peak (over 6 us per token)", 0.6, share, best
        else:
            yield "tokens per 6 us", 1, 6 / result.us_per_token, 6 * result.tokens / ours.min


def demands(results: Sequence[Result]) -> list[Demand]:
    """Returns the demands on those of the results that have any, at full sizes."""
    found = []
    for result in results:
        if result.kernel == "moe" and result.case.startswith("batch 1, 6 of 32"):
            # 1.3 times the time that reading the weights takes
            asked = ("share of the time to read the weights", 1 / 1.3)
            found.append(Demand("moe", result.case, *asked, result.share, result.best_share))
        sizes = ("64 heads", "40 heads", "6144 channels")
        if "float32" not in result.case or not any(size in result.case for size in sizes):
            continue
        if result.kernel not in ("ssm_scan", "conv1d"):
            continue
        kinds = {"decode": _decode}
        if result.kernel == "ssm_scan":
            kinds["prefill"] = _prefill
        for kind, ask in kinds.items():
            if result.case.startswith(kind):
                found += [Demand(result.kernel, result.case, *d) for d in ask(result)]
    return found
