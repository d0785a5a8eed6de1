"""`coachwhip plan`: what a configuration becomes and needs, before anything is loaded."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import click

from ..errors import ConfigError
from .engine_flags import engine_flags

LENGTHS = "1k,8k,32k,max"
_LENGTH = re.compile(r"(\d+)(k?)")


@click.command()
@click.argument("model", required=False)
@click.option("--model", "model_flag", help="A checkpoint's folder or a hub id, as the argument.")
@click.option(
    "--gpu",
    metavar="NAME|BYTES",
    help="Plan for such a GPU, like H100 or 80GB; default is what this machine has.",
)
@click.option(
    "--lengths",
    default=LENGTHS,
    show_default=True,
    help="Lengths of requests, prompt and text, in tokens; k is 1024, max is max_model_len.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@engine_flags
def plan(
    model: str | None,
    model_flag: str | None,
    gpu: str | None,
    lengths: str,
    as_json: bool,
    debug: bool,
    **flags,
) -> None:
    """Show what options become for a model and a machine: every decision and its reason, the
    memory of slots and pages, and how many requests run at a time.

    Only the model's config.json is read; of a hub id (org/name) only the small files are fetched.
    Without MODEL the small model that ships with coachwhip is used. Exits with 1 where options
    conflict, and says how to resolve it.
    """
    if model and model_flag:
        raise click.UsageError("give the model once: as the argument or with --model")
    from ..checkpoint import read_model
    from ..config import options_from, this_machine
    from ..config.machine import driver_gpu, named_gpu
    from ..hub import resolve_config
    from ..plan_report import PlanReport
    from ..speculate.read_draft_model import read_draft_model

    wanted = _lengths(lengths)
    try:
        options = options_from({**flags, "model": model_flag or model}, given="command line")
        if gpu is not None and options.device == "cpu":
            raise ConfigError("gpu", "gpu", gpu, "unset with device = cpu", "drop one of the two")
        machine = this_machine(driver_gpu() if gpu is None else named_gpu(gpu))
    except ConfigError as error:
        _fail([error], as_json)
    folder = _folder(options)
    description = read_model(folder, has_weights=any(folder.glob("*.safetensors")))
    report = PlanReport(
        description, options, machine, wanted, lambda name: read_draft_model(name, resolve_config)
    )
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        from ..plan_tables import print_tables

        print_tables(report)
    if report.conflicts:
        _fail(report.conflicts, as_json=False)


def _folder(options) -> Path:
    from ..hub import refuse_revision, resolve_config
    from ..locate import small_model_dir

    if options.model is None:
        refuse_revision(None, options.revision)
        return small_model_dir()
    return resolve_config(options.model, options.revision)


def _lengths(text: str) -> list[int | None]:
    """Returns the lengths of a list such as `1k,8192,max`; None for `max`."""
    found = []
    for part in text.split(","):
        match = _LENGTH.fullmatch(part.strip().lower())
        if part.strip().lower() == "max":
            found.append(None)
        elif match is not None and int(match[1]):
            found.append(int(match[1]) * (1024 if match[2] else 1))
        else:
            raise click.BadParameter(
                f"{part!r} is no length; give numbers such as 8192 or 8k, or max",
                param_hint="--lengths",
            )
    return found


def _fail(conflicts, as_json: bool) -> None:
    """Prints what conflicts and exits."""
    from ..plan_report import conflict_dict

    if as_json:
        print(json.dumps({"conflicts": [conflict_dict(c) for c in conflicts]}, indent=2))
    for conflict in conflicts:
        print(f"coachwhip: error: {conflict}", file=sys.stderr)
    sys.exit(1)
