"""How far a batch is: a bar on a terminal, nothing anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from .counts import BatchCounts


@contextmanager
def batch_progress(counts: BatchCounts, stream: TextIO) -> Iterator[Callable[[], None]]:
    """Shows a bar until the block ends, and yields what redraws it from the counts."""
    if not stream.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=stream)) as progress:
        task = progress.add_task("", total=counts.total, completed=counts.before, figures="")

        def redraw() -> None:
            progress.update(task, completed=counts.before + counts.done, figures=figures(counts))

        redraw()
        yield redraw


def figures(counts: BatchCounts) -> str:
    """Returns the bar's numbers in short."""
    shown = [f"{counts.tokens_per_second:.0f} tok/s", f"hits {counts.hit_share:.0%}"]
    if counts.acceptance is not None:
        shown.append(f"accepted {counts.acceptance:.0%}")
    if counts.failed:
        shown.append(f"[red]{counts.failed} failed[/red]")
    return ", ".join(shown)
