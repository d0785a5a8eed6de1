"""A request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Request:
    """The tokens of one request and what it owns.

    `num_computed` tokens are folded into its slot's state and pages; the next step's first input is
    `tokens[num_computed]`. A request owns a slot and pages from admission to its end.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    """Most tokens to generate, already cut to what the model's length leaves."""
    output_token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    slot: int | None = None
    pages: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def tokens(self, begin: int, end: int) -> list[int]:
        """Returns tokens `[begin, end)` of the prompt followed by the generated ones."""
        n = len(self.prompt_token_ids)
        if begin >= n:
            return self.output_token_ids[begin - n : end - n]
        return self.prompt_token_ids[begin:end] + self.output_token_ids[: max(0, end - n)]
