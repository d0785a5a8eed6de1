"""Tiny models with random weights, and the reference that reads the same files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coachwhip.checkpoint import read_model
from coachwhip.config import EngineOptions, resolve, this_machine
from coachwhip.runner import Runner
from coachwhip.schedule.plan import PlannedSequence, StepPlan
from tests.reference.checkpoints import random_tensors, write_checkpoint
from tests.reference.nemotron_h import Reference
from tests.reference.tiny_configs import TINY_CONFIGS

MODELS = list(TINY_CONFIGS)


@dataclass
class TinyModel:
    """A checkpoint, its reference, and its runner in a dtype."""

    folder: Path
    reference: Reference
    runner: Runner

    @property
    def vocab(self) -> int:
        return self.runner.spec.vocab_size


def run_rows(
    runner: Runner,
    sequences: list[tuple[list[int], int, int, int, list[int]]],
    num_outputs: int | None = None,
) -> list[np.ndarray]:
    """Runs one step; returns each sequence's logits, of all its rows unless told otherwise.

    Args:
        runner: The model.
        sequences: (tokens, num_computed, read_slot, write_slot of the last row, pages) of each.
        num_outputs: Last rows of each sequence to return.
    """
    planned = [
        PlannedSequence(
            str(i),
            tuple(tokens),
            computed,
            read,
            (-1,) * (len(tokens) - 1) + (write,),
            tuple(pages),
            len(tokens) if num_outputs is None else num_outputs,
        )
        for i, (tokens, computed, read, write, pages) in enumerate(sequences)
    ]
    logits = runner.execute(StepPlan(tuple(planned))).logits
    ends = np.cumsum([p.num_outputs for p in planned])[:-1]
    return np.split(logits, ends)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """Returns a function: name of a tiny config -> folder of a checkpoint with random weights."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            write_checkpoint(made[name], TINY_CONFIGS[name])
        return made[name]

    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    """Returns a function: (name, dtype) -> TinyModel, loaded once per session."""
    made: dict[tuple[str, str], TinyModel] = {}

    def load(name: str, dtype: str = "float32") -> TinyModel:
        if (name, dtype) not in made:
            folder = tiny_folder(name)
            model = read_model(folder)
            options = EngineOptions(dtype=dtype, max_model_len=512, max_num_seqs=6)
            config = resolve(model.spec, model.dtype, options, this_machine(None))
            config = replace(config, num_kv_pages=config.num_kv_pages and 96)
            runner = Runner(folder, model.spec, config)
            poison(runner)
            made[name, dtype] = TinyModel(folder, Reference.from_folder(folder), runner)
        return made[name, dtype]

    return load


def decided_tensors(name: str) -> dict[str, torch.Tensor]:
    """Draws a tiny model's tensors with routers whose biases, two apart, fix the choice.

    Random routers over ten experts are often undecided, so in bfloat16 many rows choose another
    expert than in float32; what differs here is the arithmetic alone.
    """
    tensors = random_tensors(TINY_CONFIGS[name])
    draws = torch.Generator().manual_seed(1)
    for key in tensors:
        if key.endswith("e_score_correction_bias"):
            tensors[key] = 2.0 * torch.randperm(len(tensors[key]), generator=draws)
    return tensors


def poison(runner: Runner) -> None:
    """Fills every slot and page with NaN: whatever is read before it is written shows."""
    for pool in (*runner.slot_pools, *runner.page_pools):
        raw = pool.view(np_word(pool.dtype), pool.shape).to_numpy()
        raw[...] = -1  # all bits set: NaN in every float format


def np_word(dtype):
    """Returns the MAX integer type as wide as a float type."""
    from max.dtype import DType

    return DType.int32 if dtype == DType.float32 else DType.int16
