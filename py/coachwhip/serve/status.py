"""What the page shows of the engine, as plain data."""

from __future__ import annotations

import time

from .service import Service

MOST_NODES = 64
"""Most checkpoints of the prefix tree that are told of."""
MOST_CHARACTERS = 60
"""Most characters of the text that a checkpoint adds to its parent's."""


async def status(service: Service) -> dict[str, object]:
    """Returns the engine's state at this moment.

    Args:
        service: The service.
    """
    client, config = service.client, service.frontend.config
    metrics, tree = await client.look(MOST_NODES)
    found: dict[str, object] = {
        "model": service.frontend.served_names[0],
        "state": client.state.value,
        "healthy": service.health() is None,
        "restarts": client.num_restarts,
        "uptime_s": round(time.time() - service.created, 1),
        "max_model_len": config.max_model_len,
        "cache_mode": config.mamba_cache_mode,
        "tokens_per_second": round(client.token_rate.per_second, 1),
    }
    if metrics is None:
        return found
    tokenizer = service.frontend.tokenizer
    return found | {
        "requests": {
            "running": metrics.num_requests_running,
            "waiting": metrics.num_requests_waiting,
            "most_running": config.max_num_seqs,
            "most_waiting": service.options.max_queue_size,
            "preempted": metrics.num_preemptions,
        },
        "tokens": {"prompt": metrics.prompt_tokens, "generated": metrics.generation_tokens},
        "slots": {
            "total": metrics.slots_total,
            "live": metrics.slots_live,
            "checkpoints": metrics.slots_checkpoint,
            "free": metrics.slots_total - metrics.slots_live - metrics.slots_checkpoint,
            "bytes": metrics.slot_bytes,
        },
        "pages": {
            "total": metrics.pages_total,
            "live": metrics.pages_live,
            "cached": metrics.pages_cached,
            "free": metrics.pages_total - metrics.pages_live - metrics.pages_cached,
            "bytes": metrics.page_bytes,
        },
        "prefix_cache": {
            "queries": metrics.prefix_cache_queries,
            "hits": metrics.prefix_cache_hits,
            "published": metrics.published,
            "restored": metrics.restored,
            "evicted": metrics.evicted,
            "misses": metrics.prefix_miss_total,
        },
        "speculation": {
            "method": None if config.speculation is None else config.speculation.method,
            "drafts": metrics.spec_decode_num_drafts,
            "draft_tokens": metrics.spec_decode_num_draft_tokens,
            "accepted_tokens": metrics.spec_decode_num_accepted_tokens,
            "accepted_per_position": list(metrics.spec_decode_num_accepted_tokens_per_pos),
            "acceptance_length": round(metrics.acceptance_length, 3),
        },
        "prefix_tree": [
            {
                "name": node.name,
                "parent": node.parent,
                "length": node.length,
                "hits": node.hits,
                "text": _shown(tokenizer, node.tokens),
            }
            for node in tree
        ],
    }


def _shown(tokenizer, tokens: tuple[int, ...]) -> str:
    if tokenizer is None:
        return " ".join(map(str, tokens))
    return tokenizer.decode(list(tokens))[:MOST_CHARACTERS]
