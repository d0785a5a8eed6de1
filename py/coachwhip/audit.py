"""Recomputes checkpoints and compares them bit for bit: `audit_state`."""

from __future__ import annotations

import numpy as np
from max.driver import CPU

from coachwhip_graphs.spec import LayerKind

from .config import EngineConfig
from .errors import EngineError
from .runner import Runner
from .schedule.plan import PlannedSequence, StepPlan
from .schedule.request import Request


class StateAudit:
    """Checks that a checkpoint is what a computation of its prefix from nothing gives.

    Works in a slot and in pages beside the pools, so nothing that requests own is touched. In
    float32 no bit may differ: no row's arithmetic depends on how a prompt is cut.

    Args:
        runner: The model and its pools, allocated with `audit_state`.
        config: Sizes of the pools.
    """

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self._runner = runner
        self._rows = config.max_num_batched_tokens
        self._page_size = config.kv_cache_page_size
        self._layers = runner.spec.count(LayerKind.ATTENTION)
        at = runner.config  # the pools' own sizes
        self._slot = at.num_state_slots if at.audit_slots else -1
        self._pages = list(range(at.num_kv_pages, at.num_kv_pages + at.audit_pages))

    def published(self, request: Request, length: int, slot: int) -> None:
        """Compares a new checkpoint.

        Raises:
            EngineError: It differs.
        """
        self._compare(f"published by {request.request_id}", request, length, slot, request.pages)

    def restored(self, request: Request) -> None:
        """Compares the checkpoint and pages that a request was admitted to.

        Raises:
            EngineError: They differ.
        """
        pages = list(request.pages)
        if request.page_copy is not None:
            source, destination = request.page_copy
            pages[pages.index(destination)] = source
        what = f"restored for {request.request_id}"
        self._compare(what, request, request.num_computed, request.read_slot, pages)

    def _compare(
        self, what: str, request: Request, length: int, slot: int, pages: list[int]
    ) -> None:
        self._recompute(request.tokens(0, length))
        for pool in self._runner.slot_pools if slot >= 0 else ():
            if not np.array_equal(_bits(pool, slot), _bits(pool, self._slot)):
                raise EngineError(
                    f"audit_state: the checkpoint of {length} tokens {what} is not their state "
                    f"(slot {slot}, {length} tokens)"
                )
        for pool in self._runner.page_pools:
            for index in range(-(-length // self._page_size)):
                rows = min(self._page_size, length - index * self._page_size)
                got, want = (_bits(pool, p) for p in (pages[index], self._pages[index]))
                # [layers, 2, num_kv_heads, page_size, head_dim]; a draft head's layers come last
                got, want = (w[: self._layers, ..., :rows, :] for w in (got, want))
                if not np.array_equal(got, want):
                    raise EngineError(
                        f"audit_state: page {pages[index]} of the checkpoint of {length} tokens "
                        f"{what} has other keys or values than they have"
                    )

    def _recompute(self, tokens: list[int]) -> None:
        for begin in range(0, len(tokens), self._rows):
            part = tokens[begin : begin + self._rows]
            end = begin + len(part)
            pages = self._pages[: -(-end // self._page_size)]
            writes = (*[-1] * (len(part) - 1), self._slot)
            read = self._slot if begin else -1
            sequence = PlannedSequence("audit", tuple(part), begin, read, writes, tuple(pages), 0)
            self._runner.execute(StepPlan((sequence,)))


def _bits(pool, row: int) -> np.ndarray:
    """Returns one row of a float32 pool as int32 words."""
    whole = (slice(None),) * (len(pool.shape) - 1)
    return pool[row, *whole].to(CPU()).to_numpy().view(np.int32)
