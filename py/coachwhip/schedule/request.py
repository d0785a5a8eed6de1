"""A request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..cache.prefix_cache import Prefix


@dataclass(eq=False)
class Request:
    """The tokens of one request and what it owns.

    `num_computed` tokens are folded into the state in `read_slot` and the rows of `pages`; the next
    step's first input is `tokens[num_computed]`. A request owns slots and pages only while it runs.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    """Most tokens to generate, already cut to what the model's length leaves. With 0, only the
    prompt's rows are computed, all but the last."""
    priority: int = 0
    """Lower runs first."""
    cache_salt: str | None = None
    """Only requests with the same salt share cached prefixes."""
    output_token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    arrival: int = 0
    """Rank in the order of arrival, kept through preemption."""
    read_slot: int = -1
    """Where the state of the first `num_computed` tokens is, -1 = zeros: the live slot, or a
    checkpoint that is held until the next step has been executed."""
    live_slots: list[int] = field(default_factory=list)
    """The slot that only this request writes, to which the next state goes; none without Mamba
    layers."""
    drafts: list[int] = field(default_factory=list)
    """Proposed tokens after the newest one, for the next step to verify."""
    candidate_slots: list[int] = field(default_factory=list)
    """Slots for the states after each draft that the step in flight verifies."""
    boundary_slots: dict[int, int] = field(default_factory=dict)
    """Grid point -> slot that the step in flight writes for it."""
    pages: list[int] = field(default_factory=list)
    page_copy: tuple[int, int] | None = None
    """(source, destination) of the partial page that the first step after a hit copies; the source
    is held until that step has been executed."""
    reserved_pages: int = 0
    """Pages that this request may come to hold, counted against the pool."""
    num_full_pages: int = 0
    """Full pages that were offered to the cache."""
    num_noted: int = 0
    """Tokens below which the grid points were offered to the cache."""
    num_head_computed: int = 0
    """Positions for which the draft head's keys and values are in `pages`, with such a head."""
    prefix: Prefix | None = None
    publishes: bool = True
    """False once the cache was reset under the running request."""
    branch: int = 0
    """Grid point at which others with this prefix part; 0 if none is known."""
    num_scored: int | None = None
    """Rows of the prompt, from the first, whose logits were taken for `prompt_logprobs`; None where
    they are not wanted."""
    num_cached_tokens: int | None = None
    """Prompt tokens restored at the first admission; None before it."""

    @property
    def cache_keys(self) -> tuple[str, ...]:
        """What a request must have in common with this one, beside tokens, to share prefixes."""
        return () if self.cache_salt is None else (self.cache_salt,)

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_rows(self) -> int:
        """Rows to compute before the next token is known, or before the request ends."""
        return self.num_tokens - (not self.max_tokens)

    @property
    def most_restored(self) -> int:
        """Most tokens that may come from a cache: rows whose logits are wanted are computed."""
        last = len(self.prompt_token_ids) - 1
        if self.num_scored is None or self.num_scored >= last:
            return self.num_tokens - 1
        return self.num_scored

    @property
    def decodes(self) -> bool:
        """Says whether only the newest generated token is left to compute."""
        return bool(self.output_token_ids) and self.num_computed == self.num_tokens - 1

    def tokens(self, begin: int, end: int) -> list[int]:
        """Returns tokens `[begin, end)` of the prompt followed by the generated ones."""
        n = len(self.prompt_token_ids)
        if begin >= n:
            return self.output_token_ids[begin - n : end - n]
        return self.prompt_token_ids[begin:end] + self.output_token_ids[: max(0, end - n)]
