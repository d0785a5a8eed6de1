"""Checks of a plan, and the key of compiled graphs, without a model."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import coachwhip_graphs
from coachwhip import EngineError, compiled
from coachwhip.locate import kernels_dir
from coachwhip.plan_tensors import PlanTensors
from coachwhip.schedule.plan import PlannedSequence, StepPlan

GOOD = PlannedSequence("a", (1, 2), 14, 0, (-1, 0), (3,), 1)


@pytest.fixture
def tensors() -> PlanTensors:
    """The layout of a model with 10 tokens, 4 slots and 8 pages of 16 tokens."""
    return PlanTensors(10, 4, 8, 16)


def test_a_legal_plan_is_laid_out(tensors):
    tokens, starts, read, write, computed, table, rows = tensors.lay_out(StepPlan((GOOD, GOOD)))
    assert tokens.tolist() == [1, 2, 1, 2] and starts.tolist() == [0, 2, 4]
    assert read.tolist() == [0, 0] and write.tolist() == [-1, 0, -1, 0]
    assert computed.tolist() == [14, 14] and table.tolist() == [[3], [3]]
    assert rows.tolist() == [1, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"num_computed": 15},  # 17 tokens in one page
        {"pages": ()},
        {"pages": (-1,)},
        {"pages": (8,)},
        {"read_slot": 4},
        {"read_slot": -2},
        {"write_slots": (0, 4)},
        {"write_slots": (0,)},
        {"tokens": (1, 10)},
        {"tokens": (-1, 1)},
        {"num_outputs": 3},
        {"num_outputs": -1},
        {"num_computed": -1},
    ],
)
def test_a_plan_with_a_wild_index_never_reaches_the_graph(tensors, change):
    with pytest.raises(EngineError, match="the plan"):
        tensors.lay_out(StepPlan((GOOD, replace(GOOD, **change))))


def test_a_compiled_graph_is_found_only_for_the_same_sources(tmp_path, monkeypatch):
    monkeypatch.setenv(compiled.CACHE_ENV, str(tmp_path / "cache"))
    kernels = tmp_path / "kernels"
    shutil.copytree(kernels_dir(), kernels)
    graphs = tmp_path / "graphs"
    shutil.copytree(Path(coachwhip_graphs.__file__).parent, graphs)
    monkeypatch.setattr(coachwhip_graphs, "__file__", str(graphs / "__init__.py"))
    first = compiled._artifact_path("key", kernels)
    assert first == compiled._artifact_path("key", kernels)
    assert first != compiled._artifact_path("other key", kernels)
    for source in (kernels / "linear.mojo", graphs / "model.py"):
        before = compiled._artifact_path("key", kernels)
        source.write_text(source.read_text() + "\n")
        assert compiled._artifact_path("key", kernels) != before
    monkeypatch.setenv(compiled.CACHE_ENV, "")
    assert compiled._artifact_path("key", kernels) is None
