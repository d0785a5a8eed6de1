"""Lays a planned step out as the int32 tensors that the step graph takes."""

from __future__ import annotations

import numpy as np

from .errors import EngineError
from .reused import ReusedArrays
from .schedule.plan import PlannedSequence, StepPlan


class PlanTensors:
    """Reused host buffers for the tensors of a step; see `coachwhip_graphs.step.PLAN_TENSORS`.

    Args:
        vocab: Size of the vocabulary.
        slots: Rows of the slot pools.
        pages: Rows of the page pool; 0 for a model without attention layers.
        page_size: Tokens per page.
    """

    def __init__(self, vocab: int, slots: int, pages: int, page_size: int) -> None:
        self._has_pages, self._page_size = pages > 0, page_size
        self._limits = {
            "token": (0, vocab),
            "read_slot": (-1, slots),
            "write_slot": (-1, slots),
            "page": (-1, pages),
        }
        self._arrays = ReusedArrays()

    def lay_out(self, plan: StepPlan) -> list[np.ndarray]:
        """Returns the plan tensors in the graph's order; valid until the next call.

        Raises:
            EngineError: The plan names a slot, page or token that does not exist, or its rows,
                slots and pages do not fit together: no wild index may reach the graph.
        """
        sequences = plan.sequences
        for s in sequences:
            self._check_sequence(s)
        count, rows = len(sequences), plan.num_tokens
        width = max((len(s.pages) for s in sequences), default=0) or 1
        array = self._arrays.of
        tokens, write = array("token", rows), array("write_slot", rows)
        starts, read = array("start", count + 1), array("read_slot", count)
        computed = array("computed", count)
        table = array("page", count * width).reshape(count, width)
        outputs = array("output", sum(s.num_logits for s in sequences))
        table.fill(-1)
        for name, to, values in (
            ("token", tokens, [t for s in sequences for t in s.tokens]),
            ("write_slot", write, [w for s in sequences for w in s.write_slots]),
            ("read_slot", read, [s.read_slot for s in sequences]),
        ):
            if values:  # a step has few of them: lists are faster to look through than arrays
                self._check(name, min(values), max(values))
            to[:] = values
        computed[:] = [s.num_computed for s in sequences]
        ends, wanted = [0], []
        for i, s in enumerate(sequences):
            end = ends[-1] + len(s.tokens)
            ends.append(end)
            wanted += range(end - s.num_logits, end)
            table[i, : len(s.pages)] = s.pages
        starts[:], outputs[:] = ends, wanted
        if table.size:
            self._check("page", table.min(), table.max())
        return [tokens, starts, read, write, computed, table, outputs]

    def copies(self, plan: StepPlan) -> tuple[np.ndarray, np.ndarray]:
        """Returns sources and destinations of the plan's page copies; valid until the next call.

        Raises:
            EngineError: The plan names a page that does not exist.
        """
        source = self._arrays.of("source", len(plan.copies))
        destination = self._arrays.of("destination", len(plan.copies))
        source[:], destination[:] = zip(*plan.copies, strict=True)
        for pages in (source, destination):
            if pages.min() < 0:
                raise EngineError("the plan copies a page with a negative id")
            self._check("page", pages.min(), pages.max())
        return source, destination

    def _check(self, name: str, least: int, most: int) -> None:
        low, high = self._limits[name]
        if least < low or most >= high:
            raise EngineError(f"the plan names {name} ids outside [{low}, {high})")

    def _check_sequence(self, sequence: PlannedSequence) -> None:
        rows, end = len(sequence.tokens), sequence.num_computed + len(sequence.tokens)
        room = len(sequence.pages) * self._page_size
        wrong = ""
        if len(sequence.write_slots) != rows:
            wrong = f"{len(sequence.write_slots)} write slots"
        elif min(sequence.num_outputs, sequence.num_scored) < 0 or sequence.num_logits > rows:
            wrong = f"{sequence.num_scored} + {sequence.num_outputs} outputs"
        elif sequence.num_computed < 0:
            wrong = f"num_computed = {sequence.num_computed}"
        elif self._has_pages and (room < end or min(sequence.pages, default=0) < 0):
            wrong = f"pages {list(sequence.pages)} for {end} tokens"
        if wrong:
            raise EngineError(f"the plan has {rows} rows of {sequence.request_id} with {wrong}")
