"""The small model as a batch is checked against, without weights, and the command line."""

import pytest

from coachwhip.checkpoint.model_description import read_model
from coachwhip.config import EngineOptions, Machine, resolve
from coachwhip.locate import small_model_dir
from coachwhip.openai import Frontend
from tests.cli.conftest import run  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def frontend() -> Frontend:
    model = read_model(small_model_dir())
    machine = Machine(memory_bytes=8 << 30, cores=2)
    config = resolve(model.spec, model.dtype, EngineOptions(device="cpu"), machine)
    return Frontend(model, config, ("small",), any_model=True)
