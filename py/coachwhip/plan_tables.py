"""Prints a plan as tables for a person."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .config import Decision
from .config.quantity import shown_bytes
from .memory_plan import concurrency, pool_bytes, slot_use
from .plan_report import PlanReport

_BYTES = "cache_memory"
_WIDTH = 110
"""Columns where the output is no terminal."""


def print_tables(report: PlanReport) -> None:
    """Prints all of a plan; conflicts are the caller's to print."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=_WIDTH, highlight=False)
    _show(console, report.name, _model(report))
    _show(console, "Decisions", _decisions(report))
    warnings = [*report.model.warnings, *(d.reason for d in report.found.decisions if d.warns)]
    if report.draft_model is not None:
        warnings += report.draft_model.config.warnings
    for line in warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(line)}")
    if report.found.config is not None:
        _show(console, "Memory", _memory(report))
    if report.found.room is not None and report.lengths:
        _show(console, "Requests at a time that memory has room for, by length", _room(report))
        seqs = f"max_num_seqs = {report.options.max_num_seqs}"
        title = f"Slots, pages, and requests at a time by length, with {seqs}"
        _show(console, title, _modes(report))


def _show(console: Console, title: str, table: Table) -> None:
    console.print(f"\n[bold]{escape(title)}[/bold]", table, sep="\n")


def _model(report: PlanReport) -> Table:
    rows, spec = report.found.row_bytes, report.model.spec
    layers = ", ".join(f"{n} {kind}" for kind, n in report.layers.items())
    head = f", draft head of {len(spec.mtp_layers)}" if spec.mtp_layers else ""
    machine = f"{shown_bytes(report.machine.memory_bytes)}, {report.machine.cores} cores"
    if report.machine.gpu is not None:
        gpu = report.machine.gpu
        size = "memory unknown" if gpu.memory_bytes is None else shown_bytes(gpu.memory_bytes)
        machine += f"; {gpu.name}, {size}"
    table = _table("", "")
    table.add_row("model", escape(f"{spec.model_type}: {layers} layers{head}"))
    weights = f"{shown_bytes(rows.weights)} ({report.num_parameters / 1e9:.3g} billion values)"
    table.add_row("weights", weights)
    table.add_row("machine", escape(machine))
    if rows.slot.total:
        parts = f"SSM {shown_bytes(rows.slot.ssm)}, conv {shown_bytes(rows.slot.conv)}"
        if rows.slot.carry:
            parts += f", carry {shown_bytes(rows.slot.carry)}"
        table.add_row("a slot", f"{shown_bytes(rows.slot.total)}: {parts}")
    if rows.page:
        tokens = report.options.kv_cache_page_size
        page = f"{shown_bytes(rows.page)} for {tokens} tokens, {report.token_bytes:,} B each"
        table.add_row("a page", page)
    return table


def _decisions(report: PlanReport) -> Table:
    table = _table("option", "value", "from", "why")
    for one in report.found.decisions:
        if not one.warns:
            cells = (one.field, _value(one), report.origin(one), one.reason)
            table.add_row(*map(escape, cells))
    return table


def _value(decision: Decision) -> str:
    if decision.value is None:
        return "-"
    if isinstance(decision.value, bool):
        return "on" if decision.value else "off"
    return shown_bytes(decision.value) if decision.field == _BYTES else str(decision.value)


def _memory(report: PlanReport) -> Table:
    found, config = report.found, report.found.config
    rows, use = found.row_bytes, slot_use(config)
    table = _table("", "count", "bytes")
    draft, drafting, weights = report.draft_model, [], rows.weights
    pools = pool_bytes(found)
    if draft is not None:
        drafting = [
            ("slots of the draft model", draft.config.num_state_slots, draft.slot),
            ("pages of the draft model", draft.config.num_kv_pages, draft.page),
        ]
        pools, weights = pools + draft.pool_bytes, weights + draft.weights
    for name, count, size in (
        ("slots of running requests", use.live, rows.slot.total),
        ("slots of their drafts", use.candidates, rows.slot.total),
        ("slots of checkpoints", use.checkpoints, rows.slot.total),
        ("slots of the audit", config.audit_slots, rows.slot.total),
        ("pages", config.num_kv_pages, rows.page),
        ("pages of the audit", config.audit_pages, rows.page),
        *drafting,
    ):
        if count:
            table.add_row(name, f"{count:,}", shown_bytes(count * size))
    table.add_row("together", "", shown_bytes(pools))
    table.add_row("with weights", "", shown_bytes(pools + weights))
    if config.most_drafts:
        table.add_row("of which speculation adds", "", shown_bytes(report.speculation_bytes))
    if config.mamba_cache_mode != "none":
        finest = f"hits each {report.hit_tokens} tokens"
        table.add_row("a prompt sent again", "", finest)
    for length in report.lengths:
        served = concurrency(config, length)
        limit = f"limited by {served.limited_by}"
        table.add_row(f"requests of {length:,} tokens at a time", f"{served.requests:,}", limit)
    return table


def _room(report: PlanReport) -> Table:
    table = _table("drafts", *(f"{n:,} tokens" for n in report.lengths))
    for drafts, counts in report.room():
        table.add_row(str(drafts), *("-" if n is None else f"{n:,}" for n in counts))
    return table


def _modes(report: PlanReport) -> Table:
    uses = ("running", "drafting", "checkpoints", "pages", "bytes")
    table = _table("mode", "drafts", *uses, *(f"{n:,}" for n in report.lengths))
    for one in report.modes:
        config = one.resolution.config
        if config is None:
            error = one.resolution.conflicts[0]
            table.add_row(one.mode, str(one.drafts), f"[red]{error.code}[/red]")
            continue
        use = slot_use(config)
        counts = (use.live, use.candidates, use.checkpoints, config.num_kv_pages)
        table.add_row(
            one.mode,
            str(one.drafts),
            *(f"{n:,}" for n in counts),
            shown_bytes(pool_bytes(one.resolution)),
            *(f"{concurrency(config, n).requests:,}" for n in report.lengths),
        )
    return table


def _table(*columns: str) -> Table:
    """Returns an empty table; columns of numbers are to the right."""
    table = Table(show_header=any(columns))
    left = ("", "option", "value", "from", "why", "mode")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    return table
