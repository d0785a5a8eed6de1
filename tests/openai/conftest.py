"""The small model as translation sees it: without weights."""

import pytest

from coachwhip.checkpoint.model_description import read_model
from coachwhip.config import EngineOptions, Machine, resolve
from coachwhip.locate import small_model_dir
from coachwhip.openai import Frontend


@pytest.fixture(scope="session")
def frontend() -> Frontend:
    model = read_model(small_model_dir())
    machine = Machine(memory_bytes=8 << 30, cores=2)
    config = resolve(
        model.spec, model.dtype, EngineOptions(max_model_len=256, device="cpu"), machine
    )
    return Frontend(model, config, ("small", "other-name"))
