"""Resolved options: every value is final and fits the model and the machine."""

from __future__ import annotations

from dataclasses import dataclass

from .caching import DEFAULT_BLOCK, DEFAULT_BUDGET
from .decisions import Decision
from .speculation import Speculation


@dataclass(frozen=True)
class EngineConfig:
    """What an engine runs with; see `EngineOptions` for what the values mean."""

    dtype: str
    device: str
    max_model_len: int
    max_num_seqs: int
    mamba_ssm_cache_dtype: str
    kv_cache_dtype: str
    kv_cache_page_size: int
    num_state_slots: int
    num_kv_pages: int
    check_finite: bool
    max_num_batched_tokens: int = DEFAULT_BUDGET
    enable_chunked_prefill: bool = True
    mamba_cache_mode: str = "none"
    mamba_block_size: int = DEFAULT_BLOCK
    scheduling_policy: str = "fcfs"
    step_loop: str = "simple"
    speculation: Speculation | None = None
    audit_state: bool = False
    warnings: tuple[str, ...] = ()
    """What the user should know about these options, one line each."""
    decisions: tuple[Decision, ...] = ()
    """How each value came about, in the order they were decided."""

    @property
    def copies_pages(self) -> bool:
        """Whether a hit may copy a page: its checkpoint lies between two page ends, or the draft
        head computes its last row anew."""
        cached = self.mamba_cache_mode != "none" and self.num_state_slots and self.num_kv_pages
        between = self.mamba_block_size % self.kv_cache_page_size
        return bool(cached and (between or self.runs_head))

    @property
    def runs_head(self) -> bool:
        """Whether the model's multi-token-prediction head runs."""
        return self.speculation is not None and self.speculation.method == "mtp"

    @property
    def most_drafts(self) -> int:
        """Most drafts of a request in a step."""
        return 0 if self.speculation is None else self.speculation.num_speculative_tokens

    @property
    def audit_slots(self) -> int:
        """Slots beside the pool in which states are recomputed."""
        return int(self.audit_state and self.num_state_slots > 0)

    @property
    def audit_pages(self) -> int:
        """Pages beside the pool for the same."""
        if not self.audit_state or not self.num_kv_pages:
            return 0
        return -(-self.max_model_len // self.kv_cache_page_size)
