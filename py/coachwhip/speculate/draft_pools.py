"""How many slots and pages a draft model gets, beside the model that it drafts for."""

from __future__ import annotations

from dataclasses import replace

from coachwhip_graphs.spec import ModelSpec

from ..checkpoint import ModelDescription
from ..config import CACHE_SHARE, EngineConfig, page_bytes, slot_parts
from ..errors import ConfigError

FIELD = "speculative_config.model"
SLOTS_OF_REQUEST = 2
"""One for the state of a text, one for those that drafts lead to."""


def with_draft_pools(
    config: EngineConfig, name: str, draft: ModelDescription, free_bytes: int
) -> EngineConfig:
    """Returns a draft model's options with slots and pages for as many requests as memory allows.

    At most two slots and one text of pages for each of `max_num_seqs` requests, with prefix caching
    as many pages again and a checkpoint for each grid point of each request. Slots and pages may
    each take a quarter of the free memory.

    Args:
        config: The draft model's options; its slots and pages are of no account.
        name: The draft model as the user named it.
        draft: The draft model.
        free_bytes: Memory that weights and the model's own pools leave.

    Raises:
        ConfigError: There is not even room for one request of full length.
    """
    seqs, length = config.max_num_seqs, config.max_model_len
    cached = config.mamba_cache_mode != "none"
    slot, page = home_bytes(draft.spec, config)
    one = -(-length // config.kv_cache_page_size)
    most_slots = seqs * (SLOTS_OF_REQUEST + (length // config.mamba_block_size if cached else 0))
    most_pages = seqs * one * (2 if cached else 1)
    share = int(max(0, free_bytes) * CACHE_SHARE)
    slots = min(most_slots, share // slot) if slot else 0
    pages = min(most_pages, share // page) if page else 0
    served = seqs
    if slot:
        served = min(served, slots // SLOTS_OF_REQUEST)
    if page:
        served = min(served, pages // one)
    if not served:
        needed = max(SLOTS_OF_REQUEST * slot, one * page)
        raise ConfigError(
            "memory",
            FIELD,
            name,
            f"a model that fits beside the other: for {length} tokens it needs {needed:,} bytes of "
            f"slots or pages, and each may take a quarter of the {max(0, free_bytes):,} bytes that "
            "are left of this machine's memory",
            "name a smaller draft model, or give a smaller max_model_len, num_state_slots or "
            "num_kv_pages",
        )
    warnings = ()
    if served < seqs:
        warnings = (
            f"{FIELD}: memory has room for the drafts of {served} requests of {length} tokens at a "
            f"time, not of max_num_seqs = {seqs}; the others get none",
        )
    return replace(config, num_state_slots=slots, num_kv_pages=pages, warnings=warnings)


def free_memory(
    memory_bytes: int, model: ModelDescription, config: EngineConfig, draft: ModelDescription
) -> int:
    """Returns what the weights of both models and the slots and pages of one leave of the memory.

    Args:
        memory_bytes: The machine's memory.
        model: The model.
        config: Its options.
        draft: The draft model.
    """
    slot, page = home_bytes(model.spec, config)
    pools = config.num_state_slots * slot + config.num_kv_pages * page
    return memory_bytes - pools - _weight_bytes(model) - _weight_bytes(draft)


def home_bytes(spec: ModelSpec, config: EngineConfig) -> tuple[int, int]:
    """Returns the bytes of one slot and of one page; 0 for a model that has none."""
    head = config.runs_head
    slot = slot_parts(spec, config.dtype, config.mamba_ssm_cache_dtype, head).total
    return slot, page_bytes(spec, config.kv_cache_page_size, config.kv_cache_dtype, head)


def _weight_bytes(model: ModelDescription) -> int:
    return sum(file.stat().st_size for file in model.path.glob("*.safetensors"))
