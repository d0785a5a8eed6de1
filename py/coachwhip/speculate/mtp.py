"""The multi-token-prediction head as a drafter."""

from __future__ import annotations

from dataclasses import replace

from max.driver import Buffer

from coachwhip_graphs.mtp import mtp_graph

from ..runner import Runner, StepOutput
from ..schedule.plan import PlannedSequence, StepPlan


class MtpHead:
    """Runs a model's MTP head over the runner's pages.

    The head's row for position `i` takes the trunk's hidden state of `i` and the token at `i + 1`,
    and predicts the token at `i + 2`. It has its own keys and values for every position, in the
    last layers of the same pages. A deeper draft feeds the head its own output of the row before.

    Args:
        runner: The loaded model; it must have a head.
        on_progress: Gets lines while the graph compiles.

    Raises:
        ValueError: The model has no MTP head.
    """

    def __init__(self, runner: Runner, on_progress=None) -> None:
        self._runner = runner
        self._model = runner.load("mtp", mtp_graph, on_progress)

    def execute(self, plan: StepPlan, hidden: Buffer) -> StepOutput:
        """Runs the head over the rows of a plan.

        Args:
            plan: `tokens` are the tokens after each row's position, `num_computed` the positions
                the head has seen; slots are not used.
            hidden: [rows, hidden] of the model dtype; the hidden state of each row's position.

        Returns:
            Drafts, logits and the head's own hidden rows.
        """
        return self._runner.run(self._model, plan, hidden)


def draft(
    head: MtpHead, runner: Runner, prompt: list[int], count: int, slot: int, pages: list[int]
) -> tuple[int, list[int]]:
    """Computes a prompt, its greedy next token, and drafts after it.

    Args:
        head: The model's MTP head.
        runner: The model.
        prompt: Token ids.
        count: Number of drafts, at least 1.
        slot: A free slot, -1 for a model without Mamba layers.
        pages: Free pages for `len(prompt) + count` tokens.

    Returns:
        The next token, and `count` drafts of the tokens after it.
    """
    budget, end = runner.config.max_num_batched_tokens, len(prompt)
    rows = PlannedSequence("draft", (), 0, -1, (), tuple(pages), 0)
    for at in range(0, end, budget):
        part = tuple(prompt[at : at + budget])
        step = replace(
            rows,
            tokens=part,
            num_computed=at,
            read_slot=slot if at else -1,
            write_slots=(-1,) * (len(part) - 1) + (slot,),
            num_outputs=1,
        )
        out = runner.execute(StepPlan((step,)))
        following = prompt[at + 1 : at + budget + 1]
        if at + budget >= end:
            following = [*following, int(out.tokens[0])]
        ahead = replace(step, tokens=tuple(following), read_slot=-1, write_slots=(-1,) * len(part))
        drafted = head.execute(StepPlan((ahead,)), out.hidden)
    drafts, last = [int(drafted.tokens[0])], _last_row(drafted.hidden)
    while len(drafts) < count:
        step = replace(
            rows,
            tokens=(drafts[-1],),
            num_computed=end + len(drafts) - 1,
            write_slots=(-1,),
            num_outputs=1,
        )
        drafted = head.execute(StepPlan((step,)), last)
        drafts.append(int(drafted.tokens[0]))
        last = drafted.hidden
    return int(out.tokens[0]), drafts


def _last_row(hidden: Buffer) -> Buffer:
    """Returns the last of the rows, [1, hidden]."""
    return hidden[hidden.shape[0] - 1 : hidden.shape[0], :]
