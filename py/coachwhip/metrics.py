"""What an engine counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass
class StepSeconds:
    """Seconds spent in the parts of all steps so far."""

    plan: float = 0.0
    """Deciding rows, slots and pages."""
    tensors: float = 0.0
    """Laying the plan out for the graph."""
    execute: float = 0.0
    """Page copies, the graph, and fetching its results."""
    accept: float = 0.0
    """Stop conditions, texts and log probabilities."""
    commit: float = 0.0
    """Publishing, releasing, and the index of prefixes."""

    @property
    def host(self) -> float:
        """All but the graph."""
        return self.plan + self.tensors + self.accept + self.commit


@dataclass(frozen=True)
class Metrics:
    """Gauges and counters of an engine at one moment; counters count since its start.

    `prefix_cache_queries` and `prefix_cache_hits` are tokens. `published`, `restored` and `evicted`
    are checkpoints; `publish_skipped` those not made for want of a slot. `prefix_miss_total` counts
    admissions without a hit by reason: `disabled`, `too_short` (no grid point below the last
    token), `no_state` (never published), `no_page` (a checkpoint, but its pages are gone) and
    `evicted`.
    """

    num_requests_running: int
    num_requests_waiting: int
    num_preemptions: int
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    prefix_miss_total: dict[str, int]
    slots_total: int
    slots_live: int
    slots_checkpoint: int
    slot_bytes: int
    published: int
    restored: int
    evicted: int
    publish_skipped: int
    pages_total: int
    pages_live: int
    pages_cached: int
    page_bytes: int
    pages_evicted: int
    page_copies: int
    kv_cache_usage_perc: float
    num_steps: int
    step_seconds: StepSeconds = field(default_factory=StepSeconds)

    def as_dict(self) -> dict[str, object]:
        """Returns all values under their names."""
        return asdict(self)
