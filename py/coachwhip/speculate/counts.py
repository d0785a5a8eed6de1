"""What became of drafts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DraftCounts:
    """Counters of speculation since the start."""

    drafts: int = 0
    """Times that a request's drafts were verified."""
    draft_tokens: int = 0
    """Tokens that were proposed and verified."""
    accepted_tokens: int = 0
    """Tokens among them that were right, and kept."""
    accepted_per_position: list[int] = field(default_factory=list)
    """The same by position in the draft, from the first."""

    def count(self, drafts: int, accepted: int) -> None:
        """Counts one verified draft of `drafts` tokens."""
        self.drafts += 1
        self.draft_tokens += drafts
        self.accepted_tokens += accepted
        self.accepted_per_position += [0] * (drafts - len(self.accepted_per_position))
        for position in range(accepted):
            self.accepted_per_position[position] += 1
