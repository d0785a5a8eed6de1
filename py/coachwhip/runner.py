"""Runs planned steps: plan and sampled rows -> tensors -> one graph call -> tokens and logits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from max.driver import CPU, Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph

from coachwhip_graphs.model import step_graph
from coachwhip_graphs.page_copy import page_copy_graph
from coachwhip_graphs.spec import ModelSpec
from coachwhip_graphs.step import CacheSpec, page_pools, slot_pools

from .checkpoint import load_weights
from .compiled import load_graph
from .config import EngineConfig
from .errors import EngineError
from .locate import kernels_dir
from .plan_tensors import PlanTensors
from .pools import allocate_pool
from .sampling.sampler import SampledRow
from .sampling.tensors import SamplingTensors
from .schedule.plan import StepPlan
from .team import start_team

MOST_IN_PLACE, LARGEST_IN_PLACE = 64, 1 << 16
"""Host arrays whose buffers are kept, and bytes of the largest one."""


@dataclass(frozen=True)
class StepOutput:
    """What a step computed for the rows whose outputs the plan asked for, in its order.

    `tokens` [n] are the tokens after the rows, `logits` [n, vocab] float32, as the model gives
    them; a row of logits that are not all finite has `finite` False, and no meaning. With a draft
    head, `hidden` [carried + rows, hidden] of the model dtype, on the device, are the post-norm
    hidden states: first those of the slots that the `carried` sequences read, then those of all
    rows of the step. `tensors_s` are the seconds it took to lay the plan out, `graph_s` those of
    page copies, the graph, and fetching its results.
    """

    tokens: np.ndarray
    logits: np.ndarray
    finite: np.ndarray
    hidden: Buffer | None = None
    carried: int = 0
    tensors_s: float = 0.0
    graph_s: float = 0.0


class Runner:
    """A loaded model with its pools.

    Args:
        path: Folder of the checkpoint.
        spec: The model.
        config: Resolved options.
        on_progress: Gets lines while a graph compiles.
        on_warning: Gets warnings about the weights.

    Raises:
        CheckpointError: A weight is missing, extra, misshapen or cannot be read.
        ConfigError: The Mojo kernels are not found.
    """

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        config: EngineConfig,
        on_progress: Callable[[str], None] | None = None,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        self.spec = spec
        self.config = config
        self._dtype = dtype = DType[config.dtype]
        self._cache = cache = CacheSpec(
            DType[config.mamba_ssm_cache_dtype],
            DType[config.kv_cache_dtype],
            config.kv_cache_page_size,
            config.runs_head,
        )
        warn = {} if on_warning is None else {"on_warning": on_warning}
        on_gpu = config.device == "gpu"
        # The graph reads weights in place: they must live as long as it does.
        self._weights = load_weights(
            path, spec, dtype, panels=not on_gpu, check_finite=config.check_finite, **warn
        )
        self._device = Accelerator() if on_gpu else CPU()
        self._in_place: dict[int, tuple[np.ndarray, Buffer]] = {}
        """By id, host arrays and the buffers over them: decode steps pass the same ones again."""
        self._session = InferenceSession(devices=[self._device])
        if not on_gpu:
            start_team(self._session, on_progress)
        self._page_copy = None
        slots = config.num_state_slots + config.audit_slots
        pages = config.num_kv_pages + config.audit_pages
        self._plan_tensors = PlanTensors(spec.vocab_size, slots, pages, config.kv_cache_page_size)
        self._sampling_tensors = SamplingTensors(spec.vocab_size)
        self.slot_pools = [
            allocate_pool(p, slots, self._device) for p in slot_pools(spec, dtype, cache)
        ]
        self.page_pools = [allocate_pool(p, pages, self._device) for p in page_pools(spec, cache)]
        self._model = self.load("step", step_graph, on_progress)

    def load(
        self,
        name: str,
        build: Callable[..., Graph],
        on_progress: Callable[[str], None] | None = None,
    ):
        """Compiles, or finds compiled, a graph over this model's weights.

        Args:
            name: Name of the graph; part of the key under which it is kept.
            build: Builds it from (spec, dtype, cache, device, kernels).
            on_progress: Gets lines while it compiles.

        Returns:
            The executable model.
        """
        kernels = kernels_dir()
        on_gpu = self.config.device == "gpu"
        device = DeviceRef.GPU() if on_gpu else DeviceRef.CPU()
        return load_graph(
            self._session,
            repr((name, self.spec, self.config.dtype, self._cache, self.config.device)),
            kernels,
            lambda: build(self.spec, self._dtype, self._cache, device, kernels),
            self._weights,
            on_progress,
        )

    def load_page_copy(self, on_progress: Callable[[str], None] | None = None) -> None:
        """Loads the graph that copies pages, which plans with copies need; once."""
        if self._page_copy is not None:
            return
        dtype, kernels = DType[self.config.kv_cache_dtype], kernels_dir()
        device = DeviceRef.CPU() if self._device.is_host else DeviceRef.GPU()
        self._page_copy = load_graph(
            self._session,
            repr(("page_copy", dtype, self.config.device)),
            kernels,
            lambda: page_copy_graph(dtype, device, kernels),
            {},
            on_progress,
        )

    def execute(
        self,
        plan: StepPlan,
        sampled: Sequence[SampledRow | None] | None = None,
        on_launch: Callable[[], None] | None = None,
    ) -> StepOutput:
        """Runs one step of the model.

        Args:
            plan: The rows.
            sampled: How the token after each output row is chosen; None takes the most likely one,
                for a row or for all.
            on_launch: Called when the host's work is done, just before the graph runs.

        Raises:
            EngineError: The plan names a slot, page or token that does not exist (nothing ran), or
                the graph failed (the state of the plan's requests is lost).
        """
        begin = time.perf_counter()
        inputs = self.inputs(plan, sampled)
        laid_out = time.perf_counter()
        if plan.copies:
            self._copy_pages(plan)
        if on_launch is not None:
            on_launch()
        logits, tokens, *hidden = self.call(self._model, *inputs)
        logits, tokens = (b.to(CPU()).to_numpy() for b in (logits, tokens))
        finite = np.isfinite(logits.max(axis=-1))  # the maximum is NaN where any logit is
        carried = len(plan.sequences) if self.slot_pools else 0
        return StepOutput(
            tokens[:, 0],
            logits,
            finite,
            *hidden,
            carried=carried,
            tensors_s=laid_out - begin,
            graph_s=time.perf_counter() - laid_out,
        )

    def inputs(
        self, plan: StepPlan, sampled: Sequence[SampledRow | None] | None = None
    ) -> list[Buffer]:
        """Returns a step's inputs in the graph's order; valid until the next call.

        Raises:
            EngineError: The plan names a slot, page or token that does not exist.
        """
        if sampled is None:
            sampled = [None] * sum(s.num_logits for s in plan.sequences)
        tensors = [*self._plan_tensors.lay_out(plan), *self._sampling_tensors.lay_out(sampled)]
        return [*map(self.to_device, tensors), *self.slot_pools, *self.page_pools]

    def call(self, model, *inputs: Buffer) -> list[Buffer]:
        """Runs a graph.

        Raises:
            EngineError: It failed.
        """
        try:
            return model.execute(*inputs)
        except ValueError as error:  # what a raise in a kernel becomes
            raise EngineError(f"the graph failed: {error}") from error

    def _copy_pages(self, plan: StepPlan) -> None:
        """Copies the plan's pages, with all their layers."""
        indices = [self.to_device(t) for t in self._plan_tensors.copies(plan)]
        for pool in self.page_pools:
            rows = pool.view(pool.dtype, (pool.shape[0], math.prod(pool.shape[1:])))
            self.call(self._page_copy, rows, *indices)

    def to_device(self, values: np.ndarray) -> Buffer:
        """Moves one of the reused host arrays; on a CPU it is used in place."""
        if self._device.is_host:
            known = self._in_place.get(id(values))
            if known is not None and known[0] is values:
                return known[1]
            if len(self._in_place) >= MOST_IN_PLACE:
                self._in_place.clear()
            buffer = Buffer.from_numpy(values)
            if values.nbytes <= LARGEST_IN_PLACE:
                self._in_place[id(values)] = values, buffer
            return buffer
        # A transfer may still be under way when the next step writes the host buffer again.
        return Buffer.from_numpy(values.copy()).to(self._device)
