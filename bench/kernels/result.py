"""What was measured of one case, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bench.kernels.case import Work
from bench.kernels.roofline import Ceilings
from bench.kernels.timing import Timing


@dataclass(frozen=True)
class Result:
    """One case's timings beside its roofline. Times are of one layer, except `single`.

    Attributes:
        kernel: The kernel's name.
        case: The case's name.
        tokens: What one layer handles.
        work: What has to be done at least, in one layer.
        layers: Layers that one call handled.
        ours: Our timing, the data coming from memory.
        hot: Our timing on the same data again and again; None where it was not asked for.
        single: Our timing of a call that handles one layer; None where it was not asked for.
        rivals: The others' timings, by name.
        ceilings: The machine's rates, timed in the same rounds, by medians.
        best_ceilings: The same by minima: what others on the machine take away least from.
        difference: Largest difference between the results, relative to the largest value.
    """

    kernel: str
    case: str
    tokens: int
    work: Work
    layers: int
    ours: Timing
    hot: Timing | None
    single: Timing | None
    rivals: Mapping[str, Timing]
    ceilings: Ceilings
    best_ceilings: Ceilings
    difference: float

    @property
    def floor(self) -> float:
        """The roofline, in microseconds per layer."""
        return self.ceilings.floor(self.work)

    @property
    def bound(self) -> str:
        return self.ceilings.bound(self.work)

    @property
    def share(self) -> float:
        """Share of the roofline that is reached, by medians."""
        return self.floor / self.ours.median

    @property
    def best_share(self) -> float:
        """Share of the roofline that is reached, by minima."""
        return self.best_ceilings.floor(self.work) / self.ours.min

    @property
    def share_of_slots(self) -> float | None:
        """Share of the multiply-add instructions that the machine could have issued meanwhile."""
        if not self.work.slots:
            return None
        return self.work.slots / self.ceilings.peak / self.ours.median

    @property
    def us_per_token(self) -> float:
        return self.ours.median / self.tokens

    def times_faster(self, rival: str) -> float:
        """How many times as long the rival takes, by medians."""
        return self.rivals[rival].median / self.ours.median

    def best_times_faster(self, rival: str) -> float:
        """How many times as long the rival takes, by minima."""
        return self.rivals[rival].min / self.ours.min

    def to_json(self) -> dict[str, Any]:
        """The result as JSON data; times in microseconds, rates in GB/s and GFLOP/s."""
        return {
            "kernel": self.kernel,
            "case": self.case,
            "tokens": self.tokens,
            "layers_per_call": self.layers,
            "us": asdict(self.ours),
            "us_hot": asdict(self.hot) if self.hot else None,
            "us_single_call": asdict(self.single) if self.single else None,
            "us_per_token": self.us_per_token,
            "bytes": self.work.bytes,
            "pattern": self.work.pattern,
            "flop": self.work.flop,
            "gb_per_s": self.work.bytes / self.ours.median / 1e3,
            "gflop_per_s": self.work.flop / self.ours.median / 1e3,
            "roofline": {
                "us": self.floor,
                "bound": self.bound,
                "share": self.share,
                "share_by_minima": self.best_share,
                "share_of_slots": self.share_of_slots,
                "gb_per_s": self.ceilings.bandwidth / 1e3,
                "gflop_per_s": self.ceilings.peak / 1e3,
                "peak": self.work.peak,
            },
            "rivals": {
                name: asdict(timing)
                | {
                    "times": self.times_faster(name),
                    "times_by_minima": self.best_times_faster(name),
                }
                for name, timing in self.rivals.items()
            },
            "difference": self.difference,
        }
