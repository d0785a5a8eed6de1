"""Draws a report: one bar per program, and a mark where the roofline is."""

from __future__ import annotations

from pathlib import Path

from bench.kernels.report import Report

OURS, OTHERS, ROOF = "#1f6f54", "#b9c0c7", "#c2452d"


def draw(report: Report, file: Path) -> None:
    """Writes a picture with one panel per kernel; times on a logarithmic axis, microseconds.

    Raises:
        OSError: The file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kernels = list(dict.fromkeys(r.kernel for r in report.results))
    groups = {k: [r for r in report.results if r.kernel == k] for k in kernels}
    heights = [sum(len(r.rivals) + 2 for r in rows) for rows in groups.values()]
    figure, axes = pyplot.subplots(
        len(kernels),
        1,
        figsize=(11, 0.28 * sum(heights) + 1.1 * len(kernels)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, (kernel, rows) in zip(axes[:, 0], groups.items(), strict=True):
        at, ticks, names = 0, [], []
        for r in rows:
            top = at
            for name, timing in {"coachwhip": r.ours, **r.rivals}.items():
                ours = name == "coachwhip"
                axis.barh(at, timing.median, color=OURS if ours else OTHERS)
                note = f"{r.share:.0%} of the roofline" if ours else f"{r.times_faster(name):.1f}x"
                axis.text(timing.median, at, f" {timing.median:,.0f}  {note}", va="center", size=7)
                ticks.append(at)
                names.append(f"{r.case} — {name}" if ours else name)
                at += 1
            axis.vlines(r.floor, top - 0.5, at - 0.5, color=ROOF, linewidth=1.5)
            at += 1
        axis.set_xscale("log")
        axis.set_xlim(right=axis.get_xlim()[1] * 5)
        axis.set_yticks(ticks, names, size=7)
        axis.invert_yaxis()
        axis.set_title(f"{kernel}: microseconds per layer, red: roofline", size=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    about = report.machine
    figure.suptitle(f"{about['cpu']}, {about['threads']} threads, MAX {about['versions']['max']}")
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
