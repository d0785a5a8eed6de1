"""`python -m bench.kernels`: measures kernels beside the machine's ceilings and their rivals."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from bench.packages import require

KERNELS = (
    "conv1d",
    "ssm_scan",
    "gated_rms_norm",
    "attention",
    "linear",
    "moe",
    "sample",
    "copy_slots",
)


def run_benchmarks(
    kernels: tuple[str, ...], json_file: Path | None, picture: Path | None, quick: bool
) -> None:
    """Runs benchmarks, prints their tables, and writes the files that were asked for.

    Args:
        kernels: Names out of `KERNELS`.
        json_file: Where the results go as JSON.
        picture: Where a picture of them goes.
        quick: Tiny sizes, to see that all works.

    Raises:
        click.ClickException: A package that is needed is not installed.
    """
    require("torch", *(["matplotlib"] if picture else []))
    # torch's idle threads spin for milliseconds, on the cores that the next program needs. A tenth
    # of a millisecond is enough for those that torch itself runs one after another.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # MAX reads the settings of its telemetry when it starts, so they come first.
    from rich.console import Console

    import coachwhip.telemetry  # noqa: F401
    from bench.kernels import report, runner

    say = Console(stderr=True)
    found = runner.run(kernels, quick=quick, say=say.print)
    console = Console()
    report.show(found, Console(width=190) if not console.is_terminal else console)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(found.to_json(), indent=1) + "\n", "utf-8")
    if picture:
        from bench.kernels.picture import draw

        picture.parent.mkdir(parents=True, exist_ok=True)
        draw(found, picture)


def _command(name: str, kernels: tuple[str, ...], text: str) -> click.Command:
    path = click.Path(dir_okay=False, path_type=Path)

    @click.command(name, help=text)
    @click.option("--json", "json_file", type=path, help="Write the results to this file.")
    @click.option("--picture", type=path, help="Draw them into this PNG file.")
    @click.option("--quick", is_flag=True, help="Tiny sizes: see that it works, not how fast.")
    def command(json_file: Path | None, picture: Path | None, quick: bool) -> None:
        run_benchmarks(kernels, json_file, picture, quick)

    return command


@click.group()
def main() -> None:
    """Measures kernels beside what the machine can do and what others do."""


for _kernel in KERNELS:
    main.add_command(_command(_kernel, (_kernel,), f"Measure {_kernel}."))
main.add_command(_command("all", KERNELS, "Measure every kernel."))

if __name__ == "__main__":
    main(prog_name="python -m bench.kernels")
