"""What a draft model's options become: its slots and pages, beside the model that it drafts for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coachwhip_graphs.spec import ModelSpec

from ..checkpoint import ModelDescription
from ..config import (
    CACHE_SHARE,
    EngineConfig,
    EngineOptions,
    Gpu,
    Machine,
    Resolution,
    page_bytes,
    resolve,
    slot_parts,
    weight_bytes,
)
from ..errors import ConfigError

FIELD = "speculative_config.model"
SLOTS_OF_REQUEST = 2
"""One for the state of a text, one for those that drafts lead to."""
_ENOUGH = 1 << 60
"""Bytes that no model needs: memory is shared out after all else is known."""


@dataclass(frozen=True)
class DraftRoom:
    """Memory for a draft model's slots and pages: bytes for both, for either, and in words."""

    total: int
    each: int
    told: str


def draft_model_config(
    name: str,
    draft: ModelDescription,
    options: EngineOptions,
    found: Resolution,
    machine: Machine,
) -> EngineConfig:
    """Resolves the options of a draft model.

    It runs with the engine's options, at most up to its own `max_position_embeddings`, but for
    `num_state_slots`, `num_kv_pages` and `cache_memory`: the first two are the model's alone, and
    of the last the draft model has its own part.

    Args:
        name: The draft model as the user named it.
        draft: The draft model.
        options: What the user set.
        found: What became of that for the model.
        machine: What both have to fit.

    Raises:
        ConfigError: An option cannot run, or there is not even room for one request.
    """
    config = found.config
    own = replace(
        options,
        model=name,
        speculative_config=None,
        spec_method=None,
        spec_tokens=None,
        spec_model=None,
        drafter=None,
        audit_state=False,
        max_model_len=min(draft.spec.max_position_embeddings or _ENOUGH, config.max_model_len),
        num_state_slots=None,
        num_kv_pages=None,
        cache_memory=None,
    )
    gpu = None if machine.gpu is None else Gpu(machine.gpu.name, _ENOUGH)
    roomy = Machine(_ENOUGH, machine.cores, gpu)
    resolved = resolve(draft.spec, draft.dtype, own, roomy)
    weights = weight_bytes(draft.spec, resolved.dtype, resolved.device)
    return with_draft_pools(resolved, name, draft, draft_room(found, machine, weights))


def with_draft_pools(
    config: EngineConfig, name: str, draft: ModelDescription, room: DraftRoom
) -> EngineConfig:
    """Returns a draft model's options with slots and pages for as many requests as memory allows.

    At most two slots and one text of pages for each of `max_num_seqs` requests, with prefix caching
    as many pages again and a checkpoint for each grid point of each request. Both get half of the
    room, and what the other has no use for.

    Args:
        config: The draft model's options; its slots and pages are of no account.
        name: The draft model as the user named it.
        draft: The draft model.
        room: Its memory.

    Raises:
        ConfigError: There is not even room for one request of full length.
    """
    seqs, length = config.max_num_seqs, config.max_model_len
    cached = config.mamba_cache_mode != "none"
    slot, page = home_bytes(draft.spec, config)
    one = -(-length // config.kv_cache_page_size)
    most_slots = seqs * (SLOTS_OF_REQUEST + (length // config.mamba_block_size if cached else 0))
    most_pages = seqs * one * (2 if cached else 1)
    for_slots = min(room.each, max(room.total // 2, room.total - most_pages * page))
    slots = min(most_slots, for_slots // slot) if slot else 0
    for_pages = min(room.each, room.total - slots * slot)
    pages = min(most_pages, for_pages // page) if page else 0
    served = seqs
    if slot:
        served = min(served, slots // SLOTS_OF_REQUEST)
    if page:
        served = min(served, pages // one)
    if not served:
        raise ConfigError(
            "memory",
            FIELD,
            name,
            f"a model that fits beside the other: for {length} tokens it needs "
            f"{SLOTS_OF_REQUEST * slot:,} bytes of slots and {one * page:,} of pages, and has "
            f"{room.told}",
            "name a smaller draft model, give a smaller max_model_len, or leave it more memory "
            "with cache_memory, num_state_slots or num_kv_pages",
        )
    warnings = ()
    if served < seqs:
        warnings = (
            f"{FIELD}: memory has room for the drafts of {served} requests of {length} tokens at a "
            f"time, not of max_num_seqs = {seqs}; the others get none",
        )
    return replace(config, num_state_slots=slots, num_kv_pages=pages, warnings=warnings)


def draft_room(found: Resolution, machine: Machine, draft_weights: int) -> DraftRoom:
    """Returns the memory for a draft model's slots and pages.

    That is what was set aside of `cache_memory` or of a GPU's memory, where also its weights are.
    Else slots and pages may each take a quarter of the machine's memory that the weights of both
    models and the model's own slots and pages leave. On a CPU they never take more than those do.

    Args:
        found: What became of the model's options.
        machine: The machine.
        draft_weights: Bytes of the draft model's weights.
    """
    kept = found.room.draft_model
    if found.config.device == "gpu":
        told = f"{kept:,} bytes, a quarter of the memory for slots and pages"
        told += f", of which its weights take {draft_weights:,}"
        kept = max(0, kept - draft_weights)
        return DraftRoom(kept, kept, told)
    rows, config = found.row_bytes, found.config
    pools = config.num_state_slots * rows.slot.total + config.num_kv_pages * rows.page
    left = max(0, machine.memory_bytes - pools - rows.weights - draft_weights)
    if kept is None:
        each = int(left * CACHE_SHARE)
        told = f"for either a quarter of the {left:,} bytes left of this machine's memory"
        return DraftRoom(2 * each, each, told)
    if left < kept:
        told = f"{left:,} bytes, what all weights and the model's own slots and pages leave"
        return DraftRoom(left, left, f"{told} of this machine's memory")
    return DraftRoom(kept, kept, f"{kept:,} bytes, a quarter of the memory for slots and pages")


def home_bytes(spec: ModelSpec, config: EngineConfig) -> tuple[int, int]:
    """Returns the bytes of one slot and of one page; 0 for a model that has none."""
    head = config.runs_head
    slot = slot_parts(spec, config.dtype, config.mamba_ssm_cache_dtype, head).total
    return slot, page_bytes(spec, config.kv_cache_page_size, config.kv_cache_dtype, head)
