"""`coachwhip batch`: a file of requests in, a file of responses out."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ..errors import BatchError, ConfigError, StorageError
from .engine_flags import engine_flags

if TYPE_CHECKING:
    from ..batch.prepare import PreparedBatch
    from ..engine import Engine

FAILED_LINES = 3
"""Exit code of a batch that is complete, with requests that failed."""
RUNNING = 32
"""Default `max_num_seqs` of a batch, where that many fit: nobody waits for a single text."""
_SEATS = 2
"""Default texts in flight for each that runs, so that one waits where one ends."""


@click.command()
@click.argument("source", metavar="IN")
@click.argument("output", metavar="OUT")
@click.option("--model", help="A checkpoint's folder or a hub id.")
@click.option(
    "--served-model-name",
    "names",
    multiple=True,
    help="Names that lines may give as model, any other is an error; without it every name is "
    "taken for the model that runs.",
)
@click.option("--errors", metavar="FILE", help="Failed lines once more; default OUT.errors.jsonl.")
@click.option(
    "--max-inflight",
    type=click.IntRange(min=1),
    help="Most texts in the engine at a time; default twice max_num_seqs, which is "
    f"{RUNNING} here where that many fit.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Run the first N requests only.")
@click.option("--shard", metavar="I/N", help="Run the I-th of N parts of the input, from 1.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@engine_flags
def batch(
    source: str,
    output: str,
    model: str | None,
    names: tuple[str, ...],
    errors: str | None,
    max_inflight: int | None,
    limit: int | None,
    shard: str | None,
    debug: bool,
    **options,
) -> None:
    """Answer the requests of IN, a file in OpenAI's Batch format, and write the responses to OUT.

    IN may be compressed (gzip, zstd), or - for standard input. It is checked to its end before
    anything runs. Finished responses are stored in OUT.partial at once, and OUT is there when all
    are; the same command goes on where a run ended, however it ended. Ctrl-C and SIGTERM end a run
    when what is in flight is stored; a second one ends it at once.

    Exits with 0 when all requests were answered, 1 when the run could not go on, 2 when it could
    not begin, 3 when OUT is complete but requests failed, and 130 after Ctrl-C or SIGTERM.
    """
    from ..batch.input_file import BatchInput
    from ..batch.paths import BatchPaths
    from ..batch.selection import parse_shard

    part = parse_shard(shard)
    paths = BatchPaths.of(output, errors)
    paths.check(source)
    lines = BatchInput(source, paths.output.parent)
    from ..batch.prepare import PreparedBatch
    from ..compiled import progress_to_stderr
    from ..config import options_from
    from ..engine import Engine

    prepared: PreparedBatch | None = None

    def prepare(engine: Engine) -> None:
        """Checks everything before weights load; raises _Complete when nothing is left to do."""
        nonlocal prepared
        prepared = PreparedBatch(engine, lines, paths, names, part, limit, _warn)
        if not prepared.counts.total - prepared.counts.before:
            raise _Complete

    try:
        settings = options_from({**options, "model": model}, given="command line")
        wide = settings
        if not settings.is_given("max_num_seqs"):
            wide = replace(settings, max_num_seqs=RUNNING)
        try:
            engine = Engine(wide, progress_to_stderr, _warn, prepare)
        except ConfigError:
            if wide is settings or prepared is not None:
                raise
            engine = Engine(settings, progress_to_stderr, _warn, prepare)
        ended = _run(engine, prepared, max_inflight)
    except _Complete:
        prepared.ledger.complete()
        ended = True
    finally:
        if prepared is not None:
            prepared.ledger.close()
        lines.close()
    for line in prepared.counts.summary():
        _say(line)
    if not ended:
        _say(f"interrupted; the same command goes on, {paths.partial} has what is done")
        sys.exit(130)
    failed = prepared.ledger.num_failed
    _say(f"{paths.output} is complete" + (f"; failed: {paths.errors}" if failed else ""))
    sys.exit(FAILED_LINES if failed else 0)


class _Complete(Exception):
    """All lines are done already."""


def _run(engine: Engine, prepared: PreparedBatch, max_inflight: int | None) -> bool:
    """Runs what is left; returns whether all of it was done."""
    from ..batch.interrupts import interruptible
    from ..batch.progress import batch_progress
    from ..batch.run import BatchRun

    def wished() -> None:
        _say("finishing what is in flight; Ctrl-C again drops it")

    counts = prepared.begin()
    seats = max_inflight or _SEATS * engine.config.max_num_seqs
    with batch_progress(counts, sys.stderr) as redraw, interruptible(wished) as stopping:
        run = BatchRun(engine, prepared.windows(), prepared.ledger, counts, seats, stopping, redraw)
        try:
            run.run()
        except BatchError as error:  # of the input, in the midst of a run that had begun
            raise StorageError(str(error)) from None
        finally:
            counts.end()
        if counts.before + counts.done < counts.total:
            return False
        prepared.ledger.complete()
    return True


def _say(line: str) -> None:
    print(f"coachwhip: {line}", file=sys.stderr, flush=True)


def _warn(line: str) -> None:
    _say(f"warning: {line}")
