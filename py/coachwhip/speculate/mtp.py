"""The model's multi-token-prediction head as a drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from max.driver import CPU, Buffer
from max.dtype import DType

from coachwhip_graphs.mtp import mtp_graph

from ..runner import Runner
from ..sampling.sampler import SampledRow
from ..schedule.plan import PlannedSequence, StepPlan
from ..schedule.request import Request
from .drafter import Drafter, DraftStep

MOST_WAITING = 32
"""Rows of a request that may wait for the head."""


class MtpHead:
    """Runs a model's MTP head over the runner's pages.

    The head's row for position `i` takes the trunk's hidden state of `i` and the token at `i + 1`,
    and predicts the token at `i + 2`. It has its own keys and values for every position, in the
    last layers of the same pages. A deeper draft feeds the head its own output of the row before.

    Args:
        runner: The loaded model, with a head that its caches have room for.
        on_progress: Gets lines while the graph compiles.

    Raises:
        ValueError: The model has no MTP head.
    """

    def __init__(self, runner: Runner, on_progress: Callable[[str], None] | None = None) -> None:
        self._runner = runner
        self._model = runner.load("mtp", mtp_graph, on_progress)
        self._dtype = DType[runner.config.dtype]
        self._hidden_size = runner.spec.hidden_size
        self.page_size = runner.config.kv_cache_page_size

    def execute(
        self,
        plan: StepPlan,
        sampled: Sequence[SampledRow | None],
        hidden: Buffer,
        kept: Sequence[np.ndarray],
        hidden_rows: Sequence[int],
    ) -> tuple[np.ndarray, Buffer]:
        """Runs the head over the rows of a plan.

        Args:
            plan: `tokens` are the tokens after each row's position, `num_computed` the positions
                whose rows the head has; slots are not used.
            sampled: How the draft after each output row is chosen.
            hidden: [rows, hidden] of the model dtype, on the device.
            kept: Further rows, [hidden] each, of `kept_dtype`.
            hidden_rows: For each row of the plan, where its hidden state is: a row of `hidden`
                followed by `kept`.

        Returns:
            Drafts [outputs], and the head's own hidden rows [plan rows, hidden], on the device.

        Raises:
            EngineError: The plan names a page or token that does not exist, or the graph failed.
        """
        inputs = self._runner.inputs(plan, sampled)
        rows = np.stack(kept) if kept else np.empty((0, self._hidden_size), self.kept_dtype)
        more = self._runner.to_device(rows)
        more = more.view(self._dtype, more.shape)
        at = self._runner.to_device(np.array(hidden_rows, np.int32))
        tokens, hidden = self._runner.call(self._model, *inputs, hidden, more, at)
        return tokens.to(CPU()).to_numpy()[:, 0], hidden

    @property
    def kept_dtype(self) -> type:
        """Type of hidden rows on the host: float32, or the words of a 16-bit type."""
        return np.float32 if self._dtype == DType.float32 else np.uint16

    def to_host(self, hidden: Buffer) -> np.ndarray:
        """Returns hidden rows on the host, [rows, hidden] of `kept_dtype`."""
        words = DType.float32 if self.kept_dtype is np.float32 else DType.uint16
        return hidden.view(words, hidden.shape).to(CPU()).to_numpy()


@dataclass
class _Rows:
    """Rows of one request for the head: the first one's position, and where each one's hidden
    state is in the step's output, or if negative as `-1 - index` among the rows that waited."""

    request: Request
    begin: int
    hidden: list[int]


class MtpDrafter(Drafter):
    """Keeps the head's keys and values complete, and drafts with it.

    The head runs over every accepted row right after the step that computed it. Rows of requests
    that want no drafts wait, up to 32 of each, since they are cheaper together; pages are published
    when their rows are there. After a hit the head's row below the checkpoint is computed from the
    slot's carry row, in the request's own page.

    Args:
        head: The head.
        take_pages: Gives a request the pages for rows below a position.
        publishes: Whether there is a prefix cache, so that the rows of a request that ends count.
    """

    def __init__(
        self, head: MtpHead, take_pages: Callable[[Request, int], None], publishes: bool
    ) -> None:
        self._head, self._take_pages, self._publishes = head, take_pages, publishes
        self._page_size = head.page_size
        self._waiting: dict[str, list[np.ndarray]] = {}

    def propose(self, step: DraftStep) -> dict[str, list[int]]:
        kept: list[np.ndarray] = []
        ready, later = [], []
        for rows in self._rows(step, kept):
            (later if self._may_wait(step, rows) else ready).append(rows)
        if later:
            self._wait(step, later, kept)
        if not ready:
            return {}
        return self._draft(step, ready, kept)

    def forget(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)

    def _rows(self, step: DraftStep, kept: list[np.ndarray]) -> list[_Rows]:
        """Lists what the head has not run over, and puts rows that waited into `kept`."""
        found, begin = [], step.output.carried
        for index, sequence in enumerate(step.plan.sequences):
            request = step.requests.get(sequence.request_id)
            if request is not None:
                before, first = sequence.num_computed, request.num_head_computed
                hidden = []
                waited = self._waiting.get(sequence.request_id, [])
                # On the step after a hit none waits: its row is the carry of the slot it read.
                if first < before and not waited:
                    hidden.append(index)
                hidden += [-1 - len(kept) - i for i in range(len(waited))]
                kept += waited
                hidden += [begin + row for row in range(request.num_computed - before)]
                found.append(_Rows(request, first, hidden))
            begin += len(sequence.tokens)
        return found

    def _may_wait(self, step: DraftStep, rows: _Rows) -> bool:
        request = rows.request
        if request.request_id in step.wanted:
            return False
        if request.request_id in step.finished:
            return not (self._publishes and request.publishes)
        return request.decodes and len(rows.hidden) < MOST_WAITING

    def _wait(self, step: DraftStep, later: list[_Rows], kept: list[np.ndarray]) -> None:
        hidden = self._head.to_host(step.output.hidden)
        for rows in later:
            self._waiting[rows.request.request_id] = [
                kept[-1 - at] if at < 0 else hidden[at].copy() for at in rows.hidden
            ]

    def _draft(
        self, step: DraftStep, ready: list[_Rows], kept: list[np.ndarray]
    ) -> dict[str, list[int]]:
        sequences, sampled, hidden_rows = [], [], []
        offset = step.output.hidden.shape[0]
        for rows in ready:
            request, end = rows.request, rows.request.num_computed
            wanted = request.request_id in step.wanted
            sequences.append(
                self._sequence(
                    request, request.tokens(rows.begin + 1, end + 1), rows.begin, int(wanted)
                )
            )
            hidden_rows += [offset - 1 - at if at < 0 else at for at in rows.hidden]
            if wanted:
                sampled.append(step.samplers[request.request_id].row(request.num_tokens))
        tokens, hidden = self._head.execute(
            StepPlan(tuple(sequences)), sampled, step.output.hidden, kept, hidden_rows
        )
        ends = np.cumsum([len(rows.hidden) for rows in ready]) - 1
        last, drafting = [], []
        for rows, end in zip(ready, ends.tolist(), strict=True):
            request = rows.request
            request.num_head_computed = request.num_computed
            self._waiting.pop(request.request_id, None)
            if request.request_id in step.wanted:
                drafting.append(request)
                last.append(end)
        drafts = {r.request_id: [int(t)] for r, t in zip(drafting, tokens, strict=True)}
        self._deepen(step, drafting, drafts, hidden, last)
        return drafts

    def _deepen(
        self,
        step: DraftStep,
        drafting: list[Request],
        drafts: dict[str, list[int]],
        hidden: Buffer,
        last: list[int],
    ) -> None:
        """Feeds the head its own rows, one position further each time."""
        while True:
            deeper = [
                (request, at)
                for request, at in zip(drafting, last, strict=True)
                if len(drafts[request.request_id]) < step.wanted[request.request_id]
            ]
            if not deeper:
                return
            drafting = [request for request, _ in deeper]
            sequences, sampled = [], []
            for request in drafting:
                found = drafts[request.request_id]
                position = request.num_computed + len(found) - 1
                self._take_pages(request, position + 1)
                sequences.append(self._sequence(request, found[-1:], position, 1))
                sampler = step.samplers[request.request_id]
                sampled.append(sampler.row(request.num_tokens + len(found), tuple(found)))
            tokens, hidden = self._head.execute(
                StepPlan(tuple(sequences)), sampled, hidden, (), [at for _, at in deeper]
            )
            for request, token in zip(drafting, tokens, strict=True):
                drafts[request.request_id].append(int(token))
            last = list(range(len(drafting)))

    def _sequence(
        self, request: Request, tokens: Sequence[int], begin: int, outputs: int
    ) -> PlannedSequence:
        pages = request.pages[: -(-(begin + len(tokens)) // self._page_size)]
        return PlannedSequence(
            request.request_id,
            tuple(tokens),
            begin,
            -1,
            (-1,) * len(tokens),
            tuple(pages),
            outputs,
        )
