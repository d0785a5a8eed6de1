"""Counts of what the prefix cache did."""

from __future__ import annotations

from dataclasses import dataclass, field

MISS_REASONS = ("disabled", "too_short", "no_state", "no_page", "evicted", "prompt_logprobs")


@dataclass
class CacheStats:
    """Counters since the start, in tokens, checkpoints, pages or lookups."""

    queries: int = 0
    """Tokens of admitted requests, looked up at each admission."""
    hits: int = 0
    """Tokens among them whose state was restored."""
    published: int = 0
    """Checkpoints made."""
    restored: int = 0
    """Admissions that started from a checkpoint (from pages, without Mamba layers)."""
    evicted: int = 0
    """Checkpoints given up for another state."""
    skipped: int = 0
    """Checkpoints not made since every slot was owned."""
    pages_evicted: int = 0
    """Cached pages given up for others."""
    page_copies: int = 0
    """Partial pages copied for a hit."""
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MISS_REASONS, 0))
    """Admissions without a hit, by reason."""
