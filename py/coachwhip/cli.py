"""The command line: `coachwhip`."""

from __future__ import annotations

import logging
import os
import sys

import click

from . import __version__
from .commands.batch import batch
from .commands.bench import bench
from .commands.chat import chat
from .commands.generate import generate
from .commands.plan import plan
from .commands.serve import serve
from .commands.verify import verify
from .errors import BatchError, CheckpointError, CoachwhipError, ConfigError, RequestError

USER_FAULT, RUN_FAULT, INTERRUPTED = 2, 1, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="coachwhip")
def cli() -> None:
    """Inference for Mamba2 and hybrid Mamba2-attention language models."""


cli.add_command(generate)
cli.add_command(chat)
cli.add_command(serve)
cli.add_command(batch)
cli.add_command(plan)
cli.add_command(verify)
cli.add_command(bench)


def main() -> None:
    """Runs the command line and exits: 0, 1 (run-time fault), 2 (user's fault) or 130 (Ctrl-C)."""
    logging.basicConfig(format="coachwhip: %(levelname)s: %(message)s", level=logging.WARNING)
    debug = "--debug" in sys.argv
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (`| head`); closing stdout again at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(RUN_FAULT)
    except Exception as error:
        if debug:
            raise
        user_fault = isinstance(error, (ConfigError, CheckpointError, BatchError, RequestError))
        text = str(error) if isinstance(error, CoachwhipError) else _unexpected(error)
        print(f"coachwhip: error: {text}", file=sys.stderr)
        sys.exit(USER_FAULT if user_fault else RUN_FAULT)


def _unexpected(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first} (--debug shows where)"
