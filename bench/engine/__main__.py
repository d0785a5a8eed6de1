"""`python -m bench.engine`: what the prefix cache and drafts save, what a step costs the host."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import click

from bench.packages import require


@click.command()
@click.argument("cases", nargs=-1)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="Folder of a checkpoint; repeat it. Default: the small model, and a random one.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--quick", is_flag=True, help="Tiny sizes: see that it works, not how fast.")
def main(
    cases: tuple[str, ...], models: tuple[str, ...], json_file: Path | None, quick: bool
) -> None:
    """Measure CASES (prefix, conversation, batch, host, overlapped, verify, speculate, rejected,
    switched, mtp, ngram; all when none is named)."""
    if not models and not quick:
        require("torch", "safetensors")
    from rich.console import Console
    from rich.table import Table

    import coachwhip.telemetry  # noqa: F401
    from bench.engine.caching import GRID
    from bench.engine.cases import CASES, SPECULATION
    from bench.engine.measured import QUICK, Sizes
    from bench.engine.speculation import DRAFTS
    from coachwhip.checkpoint import read_model
    from coachwhip.compiled import progress_to_stderr
    from coachwhip.config import EngineOptions
    from coachwhip.engine import Engine, model_folder

    unknown = set(cases) - CASES.keys()
    if unknown:
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    sizes = QUICK if quick else Sizes()
    found: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in _models(models, Path(folder), quick):
            options = EngineOptions(
                path,
                max_model_len=sizes.longest,
                mamba_block_size=GRID // 4 if quick else GRID,
                max_num_seqs=max(8, sizes.decode_batch),
            )
            head = bool(read_model(model_folder(options)).spec.mtp_layers)
            engines = {False: None, True: None}
            measured = []
            for case in cases or CASES:
                with_head = head and case in SPECULATION
                if engines[with_head] is None:
                    config = {"method": "mtp", "num_speculative_tokens": DRAFTS}
                    engines[with_head] = Engine(
                        replace(options, speculative_config=config if with_head else None),
                        progress_to_stderr,
                    )
                found_here = CASES[case](engines[with_head], sizes)
                measured += [] if found_here is None else [found_here]
            table = Table(title=name, title_justify="left")
            for column in ("case", "without / graph", "with / host", "", "demanded"):
                table.add_column(column)
            for m in measured:
                table.add_row(
                    m.case,
                    f"{1e3 * m.without_s:.2f} ms",
                    f"{1e3 * m.with_s:.2f} ms",
                    f"{m.value:.1f} {m.unit}",
                    m.demand,
                )
            Console(width=120).print(table)
            found[name] = [asdict(m) for m in measured]
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def _models(models: tuple[str, ...], folder: Path, quick: bool):
    """Yields names and folders (None: the small model)."""
    if models:
        yield from ((model, model) for model in models)
        return
    yield "the small model", None
    if not quick:
        from bench.engine.random_model import write_random_model

        count = write_random_model(folder)
        yield f"random weights, {count / 1e6:.0f} M parameters, bfloat16", str(folder)


if __name__ == "__main__":
    main(prog_name="python -m bench.engine")
