"""`python -m bench.serve`: what clients wait for, with cache modes and drafts."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import click

_PEER = re.compile(r"(?P<name>[^=]+)=http://(?P<host>[^:/]+):(?P<port>\d+)/?(?P<model>.*)")


@click.command()
@click.option("--model", help="Folder of a checkpoint. Default: the small model.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME=http://HOST:PORT[/MODEL]",
    help="Another OpenAI-compatible server that is running, measured beside.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--quick", is_flag=True, help="Tiny sizes: see that it works, not how fast.")
def main(model: str | None, peers: tuple[str, ...], json_file: Path | None, quick: bool) -> None:
    """Measure time to first token, time between tokens and tokens per second of an endpoint.

    1, 8 and 32 clients send prompts that share most of their words. Every variant has its own
    server; all are up at the same time and take turns, so that a busy machine hits all alike.
    """
    from rich.console import Console
    from rich.table import Table

    import coachwhip.telemetry  # noqa: F401
    from bench.serve.load import QUICK, Sizes, Waits, measure
    from bench.serve.servers import running, variants
    from coachwhip.checkpoint import read_model
    from coachwhip.locate import small_model_dir

    sizes = QUICK if quick else Sizes()
    others = [_peer(text) for text in peers]
    head = bool(read_model(model or small_model_dir()).spec.mtp_layers)
    wanted = variants(head)
    flags = ("--max-num-seqs", "32")
    with (
        tempfile.TemporaryDirectory() as logs,
        running(wanted, model, flags, Path(logs)) as servers,
    ):
        found: dict[tuple[str, int], list[Waits]] = {}
        for repeat in range(-1, sizes.repeats):  # the first round warms up
            for clients in sizes.clients:
                for server in (*servers, *others):
                    seed = 1000 * clients + repeat
                    waits = measure(server, sizes, clients, seed)
                    if repeat >= 0:
                        found.setdefault((server.name, clients), []).append(waits)
    rows = _rows(found)
    table = Table(title=model or "the small model", title_justify="left")
    for column in ("clients", "server", "first token", "", "between tokens", "", "tokens/s", ""):
        table.add_column(column, justify="left" if column == "server" else "right")
    for row in rows:
        table.add_row(
            str(row["clients"]),
            row["server"],
            f"{1e3 * row['first_token_s']:.1f} ms",
            f"{row['first_token_ratio']:.2f}x",
            f"{1e3 * row['between_tokens_s']:.2f} ms",
            f"{row['between_tokens_ratio']:.2f}x",
            f"{row['tokens_per_second']:.0f}",
            f"{row['rate_ratio']:.2f}x",
        )
    Console(width=120).print(table)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def _rows(found: dict) -> list[dict]:
    """Returns medians over the repeats, and how many times better than the first server's."""
    from statistics import median

    rows = []
    for clients in sorted({clients for _, clients in found}):
        begin = {}
        for name in dict.fromkeys(name for name, _ in found):
            waits = found[name, clients]
            first, between = median(w.first for w in waits), median(w.between for w in waits)
            rate = median(w.rate for w in waits)
            begin = begin or {"first": first, "between": between, "rate": rate}
            rows.append(
                {
                    "clients": clients,
                    "server": name,
                    "first_token_s": first,
                    "first_token_ratio": begin["first"] / first,
                    "between_tokens_s": between,
                    "between_tokens_ratio": begin["between"] / between,
                    "tokens_per_second": rate,
                    "rate_ratio": rate / begin["rate"],
                }
            )
    return rows


def _peer(text: str):
    from bench.serve.servers import Measured

    found = _PEER.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not NAME=http://HOST:PORT", param_hint="--peer")
    return Measured(found["name"], found["host"], int(found["port"]), found["model"] or None)


if __name__ == "__main__":
    main(prog_name="python -m bench.serve")
