"""`coachwhip serve`: the endpoint."""

from __future__ import annotations

import sys

import click

from .engine_flags import engine_flags
from .serve_flags import serve_flags, take_serve_options


@click.command()
@click.argument("model", required=False)
@click.option("--model", "model_flag", help="A checkpoint's folder or a hub id, as the argument.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@serve_flags
@engine_flags
def serve(model: str | None, model_flag: str | None, debug: bool, **flags) -> None:
    """Serve a model over HTTP, as OpenAI's API does, with a page at /.

    MODEL is the folder of a checkpoint or a hub id (org/name); without it the small model that
    ships with coachwhip is used. Every flag is also a variable: COACHWHIP_PORT=8080. SIGTERM and
    Ctrl-C let running requests finish; a second one does not wait for them.
    """
    if model and model_flag:
        raise click.UsageError("give the model once: as the argument or with --model")
    endpoint = take_serve_options(flags)
    import asyncio

    from ..config import options_from
    from ..serve.engine_client import GaveUp
    from ..serve.frontend import make_frontend
    from ..serve.server import serve as run

    options = options_from({**flags, "model": model_flag or model}, given="command line")
    frontend, engine_options = make_frontend(options, endpoint.served_model_names, _warn)
    try:
        code = asyncio.run(run(frontend, engine_options, endpoint))
    except GaveUp as error:
        print(f"coachwhip: error: {error}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)


def _warn(line: str) -> None:
    print(f"coachwhip: warning: {line}", file=sys.stderr)
