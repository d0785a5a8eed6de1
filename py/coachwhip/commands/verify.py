"""`coachwhip verify`: the same output whatever the mode, budget, batch, drafts and cache."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import click

from .engine_flags import engine_flags
from .run_progress import run_progress

if TYPE_CHECKING:
    from ..config import EngineOptions
    from ..engine import Engine
    from ..verify import Outcome

GRID = 8
"""Tokens of the checkpoint grid, unless told otherwise."""
PROMPT_BLOCKS = 6
"""Length of the longest prompt in blocks of the checkpoint grid."""
QUICK_BUDGETS, QUICK_BATCHES, QUICK_DRAFTS = (1, 7, 64), (1, 8), (1, 3)


@click.command()
@click.argument("model", required=False)
@click.option("--model", "model_flag", help="Folder of a checkpoint (instead of the argument).")
@click.option("--max-tokens", type=int, default=12, show_default=True, help="Tokens per prompt.")
@click.option("--quick", is_flag=True, help="Fewer combinations.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@engine_flags
def verify(
    model: str | None,
    model_flag: str | None,
    max_tokens: int,
    quick: bool,
    debug: bool,
    **options,
) -> None:
    """Run prompts in every mode, budget, batch, loop and state of the cache, and compare all bits.

    Each combination runs without speculation, and with one of the drafters (the model's own head if
    it has one, n-grams, and one that knows the texts and errs at times) and up to 5 drafts, or more
    with --spec-tokens. Every second prompt is sampled. Without MODEL the small model that ships
    with coachwhip is used. Runs in float32 unless --dtype says otherwise, on a grid of 8 tokens
    unless --mamba-block-size does. Exits with 1 on any difference.
    """
    # MAX takes a second to import: --help is answered without it.
    from .. import verify as runs

    budgets, batches = (QUICK_BUDGETS, QUICK_BATCHES) if quick else (runs.BUDGETS, runs.BATCHES)
    engine = _engine({**options, "model": model or model_flag}, max(batches), max_tokens)
    block = engine.config.mamba_block_size
    drafts = [*(QUICK_DRAFTS if quick else runs.DRAFTS)]
    if engine.config.most_drafts > runs.DRAFTS[-1]:
        drafts.append(engine.config.most_drafts)
    speculations = [(method, count) for count in drafts for method in _methods(engine)]
    longest = min(engine.config.max_model_len - max_tokens - 1, PROMPT_BLOCKS * block)
    prompts = runs.make_prompts(engine.model.spec.vocab_size, longest, block)
    modes = runs.MODES if engine.config.num_state_slots else ("none", "all")
    # Each combination in both step loops, or where it must be quick in one of them in turn.
    chosen = [
        variant
        for loops in ((runs.LOOPS,) if quick else ((loop,) for loop in runs.LOOPS))
        for how in ({}, {"speculations": speculations})
        for variant in runs.variants(modes, budgets, batches, loops=loops, **how)
    ]
    outcomes = []
    with run_progress("verify", len(chosen), sys.stderr) as advance:
        for outcome in runs.outcomes(engine, prompts, max_tokens, chosen):
            outcomes.append(outcome)
            advance(outcome.equal)
    name = f"{engine.options.model or 'the small model'} in {engine.config.dtype}"
    sizes = (
        f"{len(prompts)} prompts, {max_tokens} new tokens each, grid of {block}, both step loops"
    )
    _print_table(f"{name}: {sizes}", outcomes)
    _conclude(name, outcomes)


def _methods(engine: Engine) -> list[str]:
    """Returns the drafters that the engine can run; `custom` is one that knows the texts."""
    own = engine.config.speculation
    methods = ["ngram", "custom"]
    return methods if own is None or own.method in methods else [own.method, *methods]


def _engine(flags: dict, batch: int, max_tokens: int) -> Engine:
    """Loads the model with room for the longest prompt and its new tokens.

    Args:
        flags: Of the command line.
        batch: The largest batch. The pools are made for it, and smaller ones use a part of them.
        max_tokens: New tokens of a prompt.
    """
    from ..checkpoint import read_model
    from ..compiled import progress_to_stderr
    from ..config import options_from
    from ..engine import Engine, model_folder

    options = options_from(flags)
    block = options.mamba_block_size or GRID
    changes: dict[str, object] = {"mamba_block_size": block, "max_num_seqs": batch}
    if options.dtype == "auto":
        changes["dtype"] = "float32"
    if options.max_model_len is None:
        changes["max_model_len"] = PROMPT_BLOCKS * block + max_tokens + 1
    if not (options.speculative_config or options.spec_method or options.spec_model):
        spec = read_model(model_folder(options)).spec
        changes["spec_method"] = "mtp" if spec.mtp_layers else "ngram"
    return Engine(
        replace(options, **changes, **_more_drafts(options)),
        progress_to_stderr,
        lambda line: print(f"coachwhip: warning: {line}", file=sys.stderr),
    )


def _more_drafts(options: EngineOptions) -> dict[str, object]:
    """Returns changes that make the number of drafts at least the largest that runs, since pools
    are made for it.

    Numbers that contradict each other, or are none, are left for the engine to refuse.
    """
    from ..verify import DRAFTS

    key = "num_speculative_tokens"
    config = options.speculative_config or {}
    given = [n for n in (config.get(key), options.spec_tokens) if n is not None]
    if not all(type(n) is int and n > 0 for n in given) or len(set(given)) > 1:
        return {}
    most = max([DRAFTS[-1], *given])
    changed = {"speculative_config": {**config, key: most}} if key in config else {}
    return {"spec_tokens": most, **changed}


def _print_table(title: str, outcomes: list[Outcome]) -> None:
    """Prints one row for each drafter, mode, state of the cache before, and with or without forced
    preemption: how often requests were preempted, runs, tokens from the cache, and drafts."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    def row_of(outcome: Outcome) -> tuple:
        v = outcome.variant
        return v.method or "", v.mode, v.start, v.preempt

    table = Table(title=escape(title))
    numbers = ("preempted", "runs", "equal", "cached", "drafts", "right")
    for column in ("drafter", "mode", "cache", *numbers):
        header = "pre-\nempted" if column == "preempted" else column
        table.add_column(header, justify="right" if column in numbers else "left")
    for (method, mode, start, _), found in groupby(sorted(outcomes, key=row_of), row_of):
        group = list(found)
        equal = sum(o.equal for o in group)
        table.add_row(
            method or "none",
            mode,
            start,
            str(sum(o.preemptions for o in group)),
            str(len(group)),
            str(equal) if equal == len(group) else f"[red]{equal}[/red]",
            str(sum(o.cached_tokens for o in group)),
            str(sum(o.drafted for o in group)),
            str(sum(o.accepted for o in group)),
        )
    Console().print(table)


def _conclude(name: str, outcomes: list[Outcome]) -> None:
    """Says whether all were equal; else lists what differs and exits with 1."""
    different = [o for o in outcomes if not o.equal]
    if not different:
        print(f"{name}: all {len(outcomes)} runs are equal")
        return
    for outcome in different:
        print(f"{outcome.variant}: {outcome.first_difference}", file=sys.stderr)
    print(f"{name}: {len(different)} of {len(outcomes)} runs are not equal", file=sys.stderr)
    sys.exit(1)
