"""What a batch counts while it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ..outputs import RequestOutput


@dataclass
class BatchCounts:
    """Lines and tokens of one run; seconds begin when the engine is ready."""

    total: int
    """Lines that the output will have."""
    before: int = 0
    """Lines that earlier runs finished."""
    done: int = 0
    """Lines that this run finished, failed ones included."""
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    def end(self) -> None:
        """Stops the clock."""
        self.ended_s = time.monotonic()

    def add(self, output: RequestOutput) -> None:
        """Counts a finished text."""
        self.prompt_tokens += len(output.prompt_token_ids)
        self.cached_tokens += output.num_cached_tokens
        self.generated_tokens += len(output.outputs[0].token_ids)
        self.drafted_tokens += output.num_drafted_tokens
        self.accepted_tokens += output.num_accepted_tokens

    @property
    def seconds(self) -> float:
        """Wall time of the run so far."""
        return (time.monotonic() if self.ended_s is None else self.ended_s) - self.started_s

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second."""
        return self.generated_tokens / self.seconds if self.seconds else 0.0

    @property
    def hit_share(self) -> float:
        """Share of the prompts' tokens that were not computed, from 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def acceptance(self) -> float | None:
        """Share of drafts that were right; None when nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    def summary(self) -> list[str]:
        """Returns what a user reads at the end, line by line."""
        lines = [
            f"{self.before + self.done} of {self.total} requests done"
            + (f", {self.before} of them by earlier runs" if self.before else "")
            + (f", {self.failed} failed" if self.failed else "")
        ]
        if self.done:
            lines += [
                f"{self.generated_tokens:,} tokens generated in {self.seconds:.1f} s, "
                f"{self.tokens_per_second:,.1f} tokens/s",
                f"prefill: {self.cached_tokens:,} of {self.prompt_tokens:,} prompt tokens "
                f"({self.hit_share:.0%}) came from the prefix cache and were not computed",
            ]
        if self.acceptance is not None:
            lines.append(
                f"drafts: {self.accepted_tokens:,} of {self.drafted_tokens:,} accepted "
                f"({self.acceptance:.0%})"
            )
        return lines
