"""What an engine counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from coachwhip_graphs.spec import ModelSpec

from .cache.pool import Pool
from .config import EngineConfig, page_bytes, slot_parts
from .schedule.scheduler import Scheduler
from .speculate.control import DraftControl
from .speculate.counts import DraftCounts


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
    draft: float = 0.0
    """Folding the step into its requests, and drafting, the drafter's own graphs included."""
    commit: float = 0.0
    """Publishing, releasing, and the index of prefixes."""

    @property
    def host(self) -> float:
        """All but the graphs and drafting."""
        return self.plan + self.tensors + self.accept + self.commit


@dataclass
class StepCounts:
    """What an engine counts beside its scheduler and cache."""

    steps: int = 0
    prompt_tokens: int = 0
    """Of finished requests."""
    generation_tokens: int = 0
    seconds: StepSeconds = field(default_factory=StepSeconds)


@dataclass(frozen=True)
class Metrics:
    """Gauges and counters of an engine at one moment; counters count since its start.

    `prefix_cache_queries` and `prefix_cache_hits` are tokens. `published`, `restored` and `evicted`
    are checkpoints; `publish_skipped` those not made for want of a slot. `prefix_miss_total` counts
    admissions without a hit by reason: `disabled`, `too_short` (no grid point below the last
    token), `no_state` (never published), `no_page` (a checkpoint, but its pages are gone),
    `evicted` and `prompt_logprobs` (whose rows are all computed).

    `spec_decode_num_drafts` counts how often a request's drafts were verified, and how many tokens
    of them there were, and were right, in all and by position. `spec_decode_num_resting` requests
    generate without drafts for now, since they do not pay; `spec_decode_times_off` is how often
    that was decided.
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
    spec_decode_num_drafts: int
    spec_decode_num_draft_tokens: int
    spec_decode_num_accepted_tokens: int
    spec_decode_num_accepted_tokens_per_pos: tuple[int, ...]
    spec_decode_num_resting: int
    spec_decode_times_off: int
    num_steps: int
    step_seconds: StepSeconds = field(default_factory=StepSeconds)

    @property
    def acceptance_length(self) -> float:
        """Mean number of tokens of a verified step: 1 and the drafts that were right."""
        drafts = self.spec_decode_num_drafts
        return 1.0 + self.spec_decode_num_accepted_tokens / drafts if drafts else 1.0

    def as_dict(self) -> dict[str, object]:
        """Returns all values under their names."""
        return asdict(self)


def collect(
    spec: ModelSpec,
    config: EngineConfig,
    scheduler: Scheduler,
    counts: StepCounts,
    drafts: DraftCounts,
    control: DraftControl | None,
) -> Metrics:
    """Returns the metrics of an engine as they are now."""
    cache = scheduler.cache
    slots = cache.slots or Pool("state slots", 0)
    pages = cache.pages or Pool("pages", 0)
    stats = cache.stats
    return Metrics(
        num_requests_running=len(scheduler.running),
        num_requests_waiting=len(scheduler.queue),
        num_preemptions=scheduler.num_preemptions,
        prompt_tokens=counts.prompt_tokens,
        generation_tokens=counts.generation_tokens,
        prefix_cache_queries=stats.queries,
        prefix_cache_hits=stats.hits,
        prefix_miss_total=dict(stats.misses),
        slots_total=slots.total,
        slots_live=slots.live,
        slots_checkpoint=slots.cached,
        slot_bytes=slot_parts(
            spec, config.dtype, config.mamba_ssm_cache_dtype, config.runs_head
        ).total,
        published=stats.published,
        restored=stats.restored,
        evicted=stats.evicted,
        publish_skipped=stats.skipped,
        pages_total=pages.total,
        pages_live=pages.live,
        pages_cached=pages.cached,
        page_bytes=page_bytes(
            spec, config.kv_cache_page_size, config.kv_cache_dtype, config.runs_head
        ),
        pages_evicted=stats.pages_evicted,
        page_copies=stats.page_copies,
        kv_cache_usage_perc=pages.owned / pages.total if pages.total else 0.0,
        spec_decode_num_drafts=drafts.drafts,
        spec_decode_num_draft_tokens=drafts.draft_tokens,
        spec_decode_num_accepted_tokens=drafts.accepted_tokens,
        spec_decode_num_accepted_tokens_per_pos=tuple(drafts.accepted_per_position),
        spec_decode_num_resting=0 if control is None else control.num_resting,
        spec_decode_times_off=0 if control is None else control.times_off,
        num_steps=counts.steps,
        step_seconds=replace(counts.seconds),
    )
