"""The benchmarks' own arithmetic, and one quick run. Nothing here depends on how fast it is."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from rich.console import Console

from bench.kernels.case import Case, Work
from bench.kernels.demands import demands
from bench.kernels.machine import machine as machine_facts
from bench.kernels.memory import Arena
from bench.kernels.report import Report, show
from bench.kernels.result import Result
from bench.kernels.roofline import Ceilings, ProbeSizes
from bench.kernels.runner import QUICK, difference, measured
from bench.kernels.timing import Timing, calls_per_round, interleave, rounds_within
from bench.packages import require

CHECKOUT = Path(__file__).resolve().parents[2]


def result(
    kernel: str = "ssm_scan",
    case: str = "decode batch 32, 64 heads, float32",
    us: float = 200.0,
    work: Work | None = None,
    **rivals: float,
) -> Result:
    """A result with ceilings of 50 GB/s and 200 GFLOP/s, 80 GB/s at best."""
    return Result(
        kernel,
        case,
        tokens=32,
        work=work or Work(8_000_000, "update", flop=1000, slots=1200),
        layers=8,
        ours=Timing(us, us * 0.9, 7),
        hot=None,
        single=Timing(us + 20, us + 10, 9),
        rivals={name.replace("_", " "): Timing(t, t, 3) for name, t in rivals.items()},
        ceilings=Ceilings(bandwidth=50_000.0, peak=200_000.0),
        best_ceilings=Ceilings(bandwidth=80_000.0, peak=200_000.0),
        difference=1e-6,
    )


def test_timing_summarises_in_microseconds() -> None:
    assert Timing.of([3e-6, 1e-6, 8e-6]) == Timing(pytest.approx(3.0), pytest.approx(1.0), 3)
    with pytest.raises(ValueError, match="seconds is empty"):
        Timing.of([])


@pytest.mark.parametrize(("seconds", "calls"), [(1e-6, 10), (5e-4, 4), (0.1, 1), (0.0, 10)])
def test_short_programs_are_called_more_often(seconds: float, calls: int) -> None:
    assert calls_per_round(seconds) == calls


@pytest.mark.parametrize(("budget", "rounds"), [(0.1, 3), (5.0, 5), (1000.0, 40)])
def test_rounds_fit_the_budget_within_limits(budget: float, rounds: int) -> None:
    assert rounds_within(budget, 1.0, 3, 40) == rounds


def test_a_layer_gets_its_part_of_a_call() -> None:
    assert Timing(16.0, 8.0, 3).of_each(8) == Timing(2.0, 1.0, 3)


def test_interleave_takes_turns() -> None:
    order: list[str] = []
    programs = {name: lambda name=name: order.append(name) for name in "ab"}
    times = interleave(programs, budget=0.0, fewest=3)
    turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert turns == ["a", "b"] * 4  # once to estimate, then three rounds
    assert times["a"].n == times["b"].n
    assert times["a"].n % 3 == 0


def test_ceilings_come_from_what_the_probes_moved_and_computed() -> None:
    sizes = ProbeSizes(window=1_000_000, iterations=1000, threads=2)
    once = Ceilings.of(Work(1, "read"), 40.0, 10.0, sizes)
    twice = Ceilings.of(Work(1, "update", peak="bfloat16"), 40.0, 10.0, sizes)
    assert once.bandwidth == 25_000  # 1 MB in 40 us
    assert twice.bandwidth == 50_000  # read and written
    assert once.peak == 1000 * 12 * 16 * 2 * 2 / 10
    assert twice.peak == 2 * once.peak


def test_roofline_is_the_slower_of_memory_and_arithmetic() -> None:
    ceilings = Ceilings(bandwidth=50_000.0, peak=200_000.0)
    by_memory, by_arithmetic = (
        Work(5_000_000, "read", flop=200_000),
        Work(50_000, "read", 2_000_000),
    )
    assert (ceilings.floor(by_memory), ceilings.bound(by_memory)) == (100, "memory")
    assert (ceilings.floor(by_arithmetic), ceilings.bound(by_arithmetic)) == (10, "arithmetic")


def test_result_shares() -> None:
    r = result(us=200.0, torch_step=3000.0)
    assert r.floor == 160
    assert r.share == pytest.approx(0.8)
    assert r.best_share == pytest.approx(100 / 180)
    assert r.best_times_faster("torch step") == pytest.approx(3000 / 180)
    assert r.us_per_token == pytest.approx(6.25)
    assert r.times_faster("torch step") == 15
    assert result(work=Work(1, "read", 40_000_000, slots=20_000_000)).share_of_slots == 0.5
    assert result(work=Work(1, "read")).share_of_slots is None


def test_arena_walks_everything_before_it_repeats() -> None:
    arena = Arena(torch.float32, 4 * 100)
    assert [arena.next_block(30) for _ in range(4)] == [0, 1, 2, 0]
    assert arena.next_block(10) == 3  # behind the 30 values just given
    assert arena.next_block(30) == 2  # 40 to 60 are left out: blocks are aligned
    assert arena.blocks(5, 7).shape == (2, 5, 7)
    with pytest.raises(ValueError, match="more than the arena's 100 values"):
        arena.blocks(101)


def test_a_wrong_rival_is_refused() -> None:
    def case(y: list[float]) -> Case:
        outputs = {"ours": torch.tensor([1.0, 4.0]), "rival": torch.tensor(y)}
        return Case("k", "c", Work(1, "read"), lambda: None, {}, lambda: outputs, 1)

    assert difference(case([1.0, 3.0]).outputs()) == 0.25
    for wrong in ([1.0, 3.0], [float("nan"), 4.0]):
        with pytest.raises(ArithmeticError, match="results differ by"):
            measured(case(wrong), {}, None, QUICK)


def test_demands_ask_of_the_decode_what_the_issue_asks() -> None:
    fast = result(us=200.0, MAX_builtin=2000.0, torch_step=3000.0)
    assert [(d.least, d.met) for d in demands([fast])] == [(10, True), (15, True), (0.8, True)]
    slow = result(us=201.0, MAX_builtin=2000.0, torch_step=3000.0)
    assert [d.met for d in demands([slow])] == [False, False, False]


@pytest.mark.parametrize(("standard", "met"), [(49.0, False), (50.0, True)])
def test_conv_is_compared_with_the_standard_torch(standard: float, met: bool) -> None:
    case = "decode batch 1, 6144 channels, float32"
    r = result("conv1d", case, 10.0, torch_conv1d=standard, torch_sum=1.0)
    assert [(d.measured, d.met) for d in demands([r])] == [(standard / 10, met)]


@pytest.mark.parametrize(("us", "measured"), [(32 * 5.0, 1.2), (32 * 10.0, 0.75)])
def test_prefill_meets_a_time_or_a_share_of_the_peak(us: float, measured: float) -> None:
    work = Work(1, "update", flop=48_000_000)
    r = result(case="prefill 512, 40 heads, float32", us=us, work=work)
    assert [(d.measured, d.met) for d in demands([r])] == [(pytest.approx(measured), True)]


def test_nothing_is_demanded_of_other_shapes() -> None:
    cases = ("decode batch 2, 8 heads, float32", "decode batch 32, 64 heads, bfloat16")
    assert demands([result(case=case, torch_step=1.0) for case in cases]) == []


def report() -> Report:
    machine = machine_facts(2, Timing(9.0, 8.0, 5))
    return Report(machine, [result(MAX_builtin=2000.0, torch_step=3000.0)], quick=False)


def test_json_holds_every_number_beside_its_roofline() -> None:
    data = json.loads(json.dumps(report().to_json()))
    assert data.keys() == {"machine", "quick", "ceilings", "results", "demands"}
    assert data["ceilings"] == {"update GB/s": 50.0, "float32 GFLOP/s": 200.0}
    (one,) = data["results"]
    assert one["us"] == {"median": 200.0, "min": 180.0, "n": 7}
    assert one["us_single_call"] == {"median": 220.0, "min": 210.0, "n": 9}
    assert one["layers_per_call"] == 8
    assert one["gb_per_s"] == 40.0
    assert one["roofline"]["share"] == pytest.approx(0.8)
    assert one["roofline"]["bound"] == "memory"
    assert one["rivals"]["torch step"]["times"] == 15.0
    assert {d["met"] for d in data["demands"]} == {True}


def test_tables_show_times_and_demands() -> None:
    console = Console(record=True, width=190, file=open("/dev/null", "w"))  # noqa: SIM115
    show(report(), console)
    text = console.export_text()
    assert "torch step: 3,000.0 (15.0x, 16.7x)" in text
    assert "80%" in text
    assert "one call 220.0" in text
    assert "an empty call: 9.0 us" in text
    assert "missed" not in text


def test_a_package_that_is_not_installed_is_named_with_the_extra_that_brings_it() -> None:
    require("torch")
    with pytest.raises(click.ClickException, match=r"no_such_package is not.*coachwhip\[bench\]"):
        require("torch", "no_such_package")


@pytest.mark.slow
def test_quick_run_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "new" / "conv1d.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.kernels", "conv1d", "--quick", "--json", str(file)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(file.read_text("utf-8"))
    assert {r["kernel"] for r in data["results"]} == {"conv1d"}
    assert all(0 < r["us"]["min"] <= r["us"]["median"] for r in data["results"])
    assert all(r["difference"] < 1e-3 for r in data["results"])
    assert "torch conv1d" in data["results"][0]["rivals"]
    assert "Kernels, microseconds per layer" in done.stdout
    assert "8 layers per call" in "".join(done.stdout.split("│"))
