"""`python -m bench.serve`: what clients wait for, with cache modes and drafts."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

SLOTS = 32
"""Requests that each server runs at a time."""

_PEER = re.compile(r"(?P<name>[^=]+)=http://(?P<host>[^:/]+):(?P<port>\d+)/?(?P<model>.*)")


@click.command()
@click.option("--model", help="Folder of a checkpoint. Default: the small model.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    help="Of all servers that are started here. Default: the checkpoint's.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME=http://HOST:PORT[/MODEL]",
    help="Another OpenAI-compatible server that is running, measured beside.",
)
@click.option(
    "--llama-server",
    "llama_server",
    type=click.Path(exists=True, dir_okay=False, executable=True, path_type=Path),
    help="llama.cpp's program: started on an equal checkpoint, and measured beside.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--quick", is_flag=True, help="Tiny sizes: see that it works, not how fast.")
def main(
    model: str | None,
    dtype: str | None,
    peers: tuple[str, ...],
    llama_server: Path | None,
    json_file: Path | None,
    quick: bool,
) -> None:
    """Measure time to first token, time between tokens and tokens per second of an endpoint.

    1, 8 and 32 clients send prompts that share most of their words. Every variant has its own
    server; all are up at the same time and take turns, so that a busy machine hits all alike.
    """
    import coachwhip.telemetry  # noqa: F401
    from bench.packages import require
    from bench.serve.equal_checkpoint import default_dtype
    from bench.serve.load import QUICK, Sizes, Waits, measure
    from bench.serve.report import rows, show
    from bench.serve.servers import running, variants
    from coachwhip.checkpoint import read_model
    from coachwhip.errors import CoachwhipError
    from coachwhip.locate import small_model_dir

    sizes = QUICK if quick else Sizes()
    others = [_peer(text) for text in peers]
    try:
        described = read_model(model or small_model_dir())
    except CoachwhipError as error:
        raise click.UsageError(str(error)) from None
    dtype = dtype or default_dtype(described.dtype)
    wanted = variants(bool(described.spec.mtp_layers))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if llama_server:
            require("gguf")
            llamas_running = _begin_llama(llama_server, described, dtype, sizes, folder)
        flags = ("--max-num-seqs", str(SLOTS), "--dtype", dtype)
        servers = stack.enter_context(running(wanted, model, flags, folder))
        if llama_server:
            llamas = stack.enter_context(llamas_running)
            _compare(servers[0], llamas, sizes)
            others = [*llamas, *others]
        found: dict[tuple[str, int], list[Waits]] = {}
        for repeat in range(-1, sizes.repeats):  # the first round warms up
            for clients in sizes.clients:
                for server in (*servers, *others):
                    seed = 1000 * clients + repeat
                    waits = measure(server, sizes, clients, seed)
                    if repeat >= 0:
                        found.setdefault((server.name, clients), []).append(waits)
    listed = rows(found)
    show(listed, f"{model or 'the small model'}, {dtype}")
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(listed, indent=1) + "\n", "utf-8")


def _peer(text: str):
    from bench.serve.servers import Measured

    found = _PEER.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not NAME=http://HOST:PORT", param_hint="--peer")
    return Measured(found["name"], found["host"], int(found["port"]), found["model"] or None)


def _begin_llama(binary: Path, model, dtype: str, sizes, folder: Path):
    """Writes the equal checkpoint and returns what starts llama-server on it."""
    from bench.serve.equal_checkpoint import write_equal
    from bench.serve.gguf_tensors import has_head
    from bench.serve.llama_server import llama_flags, llama_running, llama_variants
    from coachwhip.errors import CoachwhipError

    file = folder / "equal.gguf"
    try:
        write_equal(model.path, file, dtype)
    except CoachwhipError as error:
        raise click.UsageError(str(error)) from None
    flags = llama_flags(file, dtype, SLOTS, sizes.most_tokens)
    return llama_running(binary, llama_variants(has_head(model.spec)), flags, folder)


def _compare(ours, llamas: list, sizes) -> None:
    """Prints how far llama-server says what coachwhip says.

    Raises:
        click.ClickException: It reads other tokens, so that the two would not do the same work.
    """
    from bench.serve.agreement import agreement
    from bench.serve.load import prompts

    texts = [text for own in prompts(sizes, 3, 0) for text in own]
    for theirs in llamas:
        found = agreement(ours, theirs, texts, sizes.new_tokens)
        line = (
            f"{theirs.name}: of {found.prompts} prompts, {found.same_tokens} have the same tokens"
        )
        click.echo(f"{line}, {found.same_texts} the same greedy text as coachwhip")
        if found.same_tokens < found.prompts:
            raise click.ClickException(f"{theirs.name} reads prompts as other tokens")


if __name__ == "__main__":
    main(prog_name="python -m bench.serve")
