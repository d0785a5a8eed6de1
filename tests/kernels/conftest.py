"""Fixtures: one session, and one compile of every graph that the tests here run."""

import pytest
from max.driver import CPU
from max.engine import InferenceSession, Model

from coachwhip.locate import kernels_dir
from coachwhip.team import start_team
from tests.kernels.op_graphs import (
    ATTENTION,
    CONV,
    COPY,
    EXPERTS,
    LINEAR,
    LOAD,
    NORM,
    ROUTE,
    SAMPLE,
    SCAN,
    STORE,
    compiled,
)


@pytest.fixture(scope="session")
def models() -> dict[str, Model]:
    """The compiled graphs, by the names of their configurations."""
    session = InferenceSession(devices=[CPU()])
    start_team(session)
    configs = [*CONV, *SCAN, *NORM, *LINEAR, *ATTENTION, *ROUTE, *EXPERTS, *COPY]
    configs += [*LOAD, *STORE, SAMPLE]
    return compiled(session, kernels_dir(), configs)
