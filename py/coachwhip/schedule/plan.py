"""The plan of one step: frozen plain data between scheduler and runner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedSequence:
    """The rows of one request in a step.

    `read_slot` holds the state of the first `num_computed` tokens (-1: the zero state). The state
    after row `i` goes to `write_slots[i]` (-1: nowhere). `num_outputs` is the number of last rows
    whose logits are wanted: none for an unfinished prompt, else the last row, or with `k` drafts as
    the last tokens `1 + k`. The logits of `num_scored` rows before those are wanted as well, though
    no token is chosen after them: `prompt_logprobs`.
    """

    request_id: str
    tokens: tuple[int, ...]
    num_computed: int
    read_slot: int
    write_slots: tuple[int, ...]
    pages: tuple[int, ...]
    num_outputs: int
    num_scored: int = 0

    @property
    def num_logits(self) -> int:
        """Rows whose logits are wanted, the last ones of the sequence."""
        return self.num_scored + self.num_outputs

    @property
    def drafts(self) -> tuple[int, ...]:
        """The tokens that the step verifies."""
        return self.tokens[len(self.tokens) - self.num_outputs + 1 :] if self.num_outputs else ()


@dataclass(frozen=True)
class StepPlan:
    """All rows of one step, sequence after sequence.

    `copies` are (source, destination) pages to be copied before any row runs; no destination is
    named twice, nor is it a source.
    """

    sequences: tuple[PlannedSequence, ...]
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(s.tokens) for s in self.sequences)
