"""`python -m bench.batch`: a batch whose requests share prefixes, beside slower ways to run it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

DEMANDS = {"batch, caching off": 5.0, "one by one": 3.0}
"""How many times as fast the batch has to be."""


@click.command()
@click.option("--model", help="Folder of a checkpoint or a hub id; default: the small model.")
@click.option("--max-num-seqs", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--quick", is_flag=True, help="Tiny sizes: see that it works, not how fast.")
def main(model: str | None, max_num_seqs: int, json_file: Path | None, quick: bool) -> None:
    """Measure 1,000 requests with ten shared prefixes of 1,000 tokens."""
    from rich.console import Console
    from rich.table import Table

    import coachwhip.telemetry  # noqa: F401
    from bench.batch.programs import run_all
    from bench.batch.workload import QUICK, Sizes
    from coachwhip.compiled import progress_to_stderr
    from coachwhip.config import EngineOptions
    from coachwhip.engine import Engine

    sizes = QUICK if quick else Sizes()
    options = EngineOptions(
        model,
        max_num_seqs=max_num_seqs,
        max_model_len=2 * sizes.longest,
    )
    engine = Engine(options, progress_to_stderr)
    with tempfile.TemporaryDirectory() as folder:
        found = run_all(engine, sizes, Path(folder))
    title = f"{sizes.requests} requests, {sizes.prefixes} prefixes of {sizes.prefix} tokens, "
    table = Table(title=f"{title}max_num_seqs {max_num_seqs}", title_justify="left")
    for column in ("program", "seconds", "requests/s", "from the cache", "batch is", "demanded"):
        table.add_column(column)
    for one in found:
        demand = DEMANDS.get(one.program)
        table.add_row(
            one.program,
            f"{one.seconds:.2f}",
            f"{one.requests / one.seconds:.1f}",
            f"{one.cached_share:.0%}",
            f"{one.seconds / found[0].seconds:.1f}x",
            "" if demand is None else f"{demand:g}x",
        )
    Console(width=120).print(table)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        record = {"sizes": asdict(sizes), "max_num_seqs": max_num_seqs}
        record["programs"] = [asdict(one) for one in found]
        json_file.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(prog_name="python -m bench.batch")
