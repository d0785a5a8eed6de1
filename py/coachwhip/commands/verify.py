"""`coachwhip verify`: the same output whatever the mode, budget, batch, preemption and cache."""

from __future__ import annotations

import sys

import click

from .engine_flags import engine_flags

PROMPT_BLOCKS = 6
"""Length of the longest prompt in blocks of the checkpoint grid."""


@click.command()
@click.argument("model", required=False)
@click.option("--model", "model_flag", help="Folder of a checkpoint (instead of the argument).")
@click.option("--max-tokens", type=int, default=12, show_default=True, help="Tokens per prompt.")
@click.option("--quick", is_flag=True, help="Fewer budgets and batches.")
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
    """Run prompts in every mode, budget, batch and state of the cache, and compare all bits.

    Without MODEL the small model that ships with coachwhip is used. Runs in float32 unless --dtype
    says otherwise, on a grid of 8 tokens unless --mamba-block-size does. Exits with 1 on any
    difference.
    """
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from .. import verify as runs
    from ..compiled import progress_to_stderr
    from ..config import EngineOptions
    from ..engine import Engine

    budgets, batches = ((1, 7, 64), (1, 8)) if quick else (runs.BUDGETS, runs.BATCHES)
    options["mamba_block_size"] = block = options["mamba_block_size"] or 8
    if options["dtype"] == "auto":
        options["dtype"] = "float32"
    if options["max_model_len"] is None:
        options["max_model_len"] = PROMPT_BLOCKS * block + max_tokens + 1
    # The pools are made for the largest batch, and smaller ones use a part of them.
    options["max_num_seqs"] = max(batches)
    engine = Engine(
        EngineOptions(model=model or model_flag, **options),
        progress_to_stderr,
        lambda line: print(f"coachwhip: warning: {line}", file=sys.stderr),
    )
    longest = engine.config.max_model_len - max_tokens - 1
    prompts = runs.make_prompts(
        engine.model.spec.vocab_size, min(longest, PROMPT_BLOCKS * block), block
    )
    modes = runs.MODES if engine.config.num_state_slots else ("none", "all")
    chosen = list(runs.variants(modes, budgets, batches))
    rows: dict[tuple, list] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("verify", total=len(chosen))
        for outcome in runs.outcomes(engine, prompts, max_tokens, chosen):
            v = outcome.variant
            rows.setdefault((v.mode, v.start, v.preempt), []).append(outcome)
            progress.advance(task)
    table = Table(title=f"{len(prompts)} prompts, {max_tokens} new tokens each, grid of {block}")
    for column in ("mode", "cache", "preempted", "runs", "equal", "tokens from the cache"):
        table.add_column(column, justify="right" if column in ("runs", "equal") else "left")
    for (mode, start, preempt), group in sorted(rows.items()):
        equal = sum(o.equal for o in group)
        table.add_row(
            mode,
            start,
            f"{sum(o.preemptions for o in group)} times" if preempt else "no",
            str(len(group)),
            str(equal) if equal == len(group) else f"[red]{equal}[/red]",
            str(sum(o.cached_tokens for o in group)),
        )
    Console().print(table)
    different = [o for group in rows.values() for o in group if not o.equal]
    for outcome in different:
        print(f"{outcome.variant}: {outcome.first_difference}", file=sys.stderr)
    if different:
        sys.exit(1)
