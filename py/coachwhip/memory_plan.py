"""What a configuration needs of memory, and how many requests it serves at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coachwhip_graphs.spec import LayerKind, ModelSpec

from .config import EngineConfig, EngineOptions, Machine, Resolution, examine

MOST_DRAFTS = 5
"""Largest number of drafts that is planned for, beside the one asked for."""


@dataclass(frozen=True)
class Concurrency:
    """Most requests of `length` tokens, prompt and text, that run at a time, and what limits them:
    `max_num_seqs`, `slots` or `pages`."""

    length: int
    requests: int
    limited_by: str


@dataclass(frozen=True)
class SlotUse:
    """Slots of a pool by use, when `max_num_seqs` requests run: their states, the states after
    their drafts, and checkpoints."""

    live: int
    candidates: int
    checkpoints: int


@dataclass(frozen=True)
class ModePlan:
    """A cache mode and a number of drafts for each request, and what they become."""

    mode: str
    drafts: int
    resolution: Resolution


def pool_bytes(found: Resolution) -> int:
    """Returns the bytes of all slots and pages of a configuration, those of the audit included."""
    config, rows = found.config, found.row_bytes
    slots = config.num_state_slots + config.audit_slots
    return slots * rows.slot.total + (config.num_kv_pages + config.audit_pages) * rows.page


def slot_use(config: EngineConfig) -> SlotUse:
    """Returns how the slots of a configuration are used under full load."""
    live = min(config.max_num_seqs, config.num_state_slots)
    candidates = min(live * config.most_drafts, config.num_state_slots - live)
    return SlotUse(live, candidates, config.num_state_slots - live - candidates)


def concurrency(config: EngineConfig, length: int) -> Concurrency:
    """Returns how many requests of a length run at a time, each with all its drafts.

    Args:
        config: Slots and pages.
        length: Tokens of a request, prompt and text.
    """
    limits = {"max_num_seqs": config.max_num_seqs}
    if config.num_state_slots:
        # A request runs with fewer drafts where there are no slots for more.
        limits["slots"] = config.num_state_slots // (1 + config.most_drafts) or 1
    if config.num_kv_pages:
        limits["pages"] = config.num_kv_pages // _pages(length, config.kv_cache_page_size)
    limit = min(limits, key=limits.get)
    return Concurrency(length, limits[limit], limit)


def room_for(found: Resolution, page_size: int, length: int, drafts: int) -> int | None:
    """Returns the most requests of a length that memory has room for.

    It is how many `max_num_seqs` and the pools could serve if all memory for slots and pages went
    to running requests. None where that memory, or what a request takes of it, is in conflict.

    Args:
        found: Bytes of slots and pages, and their memory.
        page_size: Tokens per page.
        length: Tokens of a request, prompt and text.
        drafts: Of a request.
    """
    room, rows = found.room, found.row_bytes
    if room is None:
        return None
    slots = (1 + drafts) * rows.slot.total
    pages = _pages(length, page_size) * rows.page
    each = [room.each // size for size in (slots, pages) if size]
    return min([*each, room.total // (slots + pages)])


def by_mode(
    spec: ModelSpec, checkpoint_dtype: str, options: EngineOptions, machine: Machine
) -> list[ModePlan]:
    """Resolves all cache modes with up to `MOST_DRAFTS` drafts, all else being as it is.

    Drafts are of the method that the options ask for, else of the model's own head, else n-grams.

    Args:
        spec: The model.
        checkpoint_dtype: As the checkpoint says.
        options: What the user set.
        machine: What it has to fit.
    """
    has_mamba = bool(spec.count(LayerKind.MAMBA2))
    asked = options.speculative_config if isinstance(options.speculative_config, dict) else {}
    method = options.spec_method or asked.get("method")
    model = options.spec_model or asked.get("model")
    if method is None:
        method = "draft_model" if model else "mtp" if spec.mtp_layers else "ngram"
    config = {**asked, "method": method, **({"model": model} if model else {})}
    wanted = options.spec_tokens or asked.get("num_speculative_tokens")
    found = []
    for mode in ("none", "align", "all") if has_mamba else ("none", "all"):
        for drafts in sorted({*range(MOST_DRAFTS + 1), *([wanted] if type(wanted) is int else [])}):
            changes = {
                "mamba_cache_mode": mode if has_mamba else "auto",
                "enable_prefix_caching": mode != "none",
                "speculative_config": {**config, "num_speculative_tokens": drafts},
                "spec_method": None,
                "spec_tokens": None,
                "spec_model": None,
            }
            if not drafts:
                changes |= {"speculative_config": None, "drafter": None}
            changed = replace(options, **changes)
            resolution = examine(spec, checkpoint_dtype, changed, machine)
            found.append(ModePlan(mode, drafts, resolution))
    return found


def _pages(length: int, page_size: int) -> int:
    """Returns the pages of a request; its last token is never computed."""
    return max(1, -(-(length - 1) // page_size))
