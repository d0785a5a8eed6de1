"""Runs planned steps: plan -> plan tensors -> one graph call -> tokens and logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from max.driver import CPU, Accelerator, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph

from coachwhip_graphs.model import step_graph
from coachwhip_graphs.spec import ModelSpec
from coachwhip_graphs.step import CacheSpec, page_pools, slot_pools

from .checkpoint import load_weights
from .compiled import load_graph
from .config import EngineConfig
from .errors import EngineError
from .locate import kernels_dir
from .pools import allocate_pool
from .schedule.plan import PlannedSequence, StepPlan


@dataclass(frozen=True)
class StepOutput:
    """What a step computed for the rows whose outputs the plan asked for, in its order.

    `request_ids` [n] names each row's request, `tokens` [n] are the greedy tokens after the rows,
    `logits` [n, vocab] float32; a row of logits that are not all finite has `finite` False, and no
    meaning. `hidden` [rows, hidden] of the model dtype, on the device, are the
    post-norm hidden states of all rows of the step.
    """

    request_ids: tuple[str, ...]
    tokens: np.ndarray
    logits: np.ndarray
    finite: np.ndarray
    hidden: Buffer


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
        )
        warn = {} if on_warning is None else {"on_warning": on_warning}
        # The graph reads mapped weights in place: they must live as long as it does.
        self._weights = load_weights(path, spec, dtype, check_finite=config.check_finite, **warn)
        on_gpu = config.device == "gpu"
        self._device = Accelerator() if on_gpu else CPU()
        self._session = InferenceSession(devices=[self._device])
        self._slot_rows = config.num_state_slots
        self._page_rows = config.num_kv_pages
        self.slot_pools = [
            allocate_pool(p, self._slot_rows, self._device) for p in slot_pools(spec, dtype, cache)
        ]
        self.page_pools = [
            allocate_pool(p, self._page_rows, self._device) for p in page_pools(spec, cache)
        ]
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

    def execute(self, plan: StepPlan) -> StepOutput:
        """Runs one step of the model.

        Raises:
            EngineError: The plan names a slot, page or token that does not exist (nothing ran), or
                the graph failed (the state of the plan's requests is lost).
        """
        return self.run(self._model, plan)

    def run(self, model, plan: StepPlan, hidden: Buffer | None = None) -> StepOutput:
        """Runs a graph that takes a step's plan tensors, and returns what the plan asked for.

        Args:
            model: The step graph or the draft graph.
            plan: The rows.
            hidden: The draft graph's hidden rows.

        Raises:
            EngineError: The plan names a slot, page or token that does not exist, or the graph
                failed.
        """
        tensors = self._tensors(plan)
        owners = tuple(s.request_id for s in plan.sequences for _ in range(s.num_outputs))
        inputs = [Buffer.from_numpy(t).to(self._device) for t in tensors]
        extra = [] if hidden is None else [hidden]
        pools = (*self.slot_pools, *self.page_pools)
        try:
            logits, tokens, rows = model.execute(*inputs, *pools, *extra)
        except ValueError as error:  # what a raise in a kernel becomes
            raise EngineError(f"the graph failed: {error}") from error
        logits, tokens = (b.to(CPU()).to_numpy() for b in (logits, tokens))
        finite = np.isfinite(logits.max(axis=-1))  # the maximum is NaN where any logit is
        return StepOutput(owners, tokens[:, 0], logits, finite, rows)

    def _tensors(self, plan: StepPlan) -> list[np.ndarray]:
        """Lays the plan out as the graph's int32 inputs; no wild index may reach it."""
        sequences = plan.sequences
        for s in sequences:
            self._check(s)
        lengths = [len(s.tokens) for s in sequences]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        tokens = np.array([t for s in sequences for t in s.tokens], np.int32)
        read = np.array([s.read_slot for s in sequences], np.int32)
        write = np.array([w for s in sequences for w in s.write_slots], np.int32)
        computed = np.array([s.num_computed for s in sequences], np.int32)
        width = max((len(s.pages) for s in sequences), default=0)
        table = np.full((len(sequences), max(width, 1)), -1, np.int32)
        for row, s in zip(table, sequences, strict=True):
            row[: len(s.pages)] = s.pages
        rows = np.array(
            [
                row
                for i, s in enumerate(sequences)
                for row in range(starts[i + 1] - s.num_outputs, starts[i + 1])
            ],
            np.int32,
        )
        for name, values, low, high in (
            ("token", tokens, 0, self.spec.vocab_size),
            ("read_slot", read, -1, self._slot_rows),
            ("write_slot", write, -1, self._slot_rows),
            ("page", table, -1, self._page_rows),
        ):
            if values.size and (values.min() < low or values.max() >= high):
                raise EngineError(f"the plan names {name} ids outside [{low}, {high})")
        return [tokens, starts, read, write, computed, table, rows]

    def _check(self, sequence: PlannedSequence) -> None:
        """Raises EngineError unless a sequence's rows, slots and pages fit together."""
        rows, end = len(sequence.tokens), sequence.num_computed + len(sequence.tokens)
        room = len(sequence.pages) * self.config.kv_cache_page_size
        wrong = ""
        if len(sequence.write_slots) != rows:
            wrong = f"{len(sequence.write_slots)} write slots"
        elif not 0 <= sequence.num_outputs <= rows:
            wrong = f"{sequence.num_outputs} outputs"
        elif sequence.num_computed < 0:
            wrong = f"num_computed = {sequence.num_computed}"
        elif self.page_pools and (room < end or min(sequence.pages, default=0) < 0):
            wrong = f"pages {list(sequence.pages)} for {end} tokens"
        if wrong:
            raise EngineError(f"the plan has {rows} rows of {sequence.request_id} with {wrong}")
