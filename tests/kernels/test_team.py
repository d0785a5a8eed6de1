"""The threads that ops share their work with: that they help, and that nothing else changes."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import pytest
from max.driver import CPU
from max.engine import InferenceSession, Model

from coachwhip.locate import kernels_dir
from coachwhip.team import MOST_MEMBERS, most_members, quota_files, start_team
from tests.kernels.arrays import assert_same_bits
from tests.kernels.op_graphs import LINEAR
from tests.kernels.test_linear import multiply, operands

WITHOUT_MEMBERS = """
import os, sys
alone = sys.argv[1] == "alone"
if alone:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from max.driver import CPU
from max.engine import InferenceSession
from coachwhip.locate import kernels_dir
from coachwhip.team import start_team
from tests.kernels.arrays import assert_close
from tests.kernels.op_graphs import LINEAR, compiled
from tests.kernels.test_linear import multiply, operands
session = InferenceSession(devices=[CPU()])
if alone:
    assert start_team(session).members == 0
config = LINEAR[0]
x, w = operands(config, 5, 512, 1200, 3)  # enough for the runtime's own parallel loop
y = multiply(compiled(session, kernels_dir(), [config])[config.name], x, w)
assert_close(y, x.values @ w.values.T, "y")
"""


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(devices=[CPU()])


def test_members_take_part(models: dict[str, Model], session: InferenceSession) -> None:
    """One member for each further CPU; a row of 300,000 products is enough work for two threads."""
    config = LINEAR[0]
    x, w = operands(config, 1, 512, 600, 0)
    before = start_team(session)
    for _ in range(200):
        multiply(models[config.name], x, w)
    after = start_team(session)
    assert after.members == min(most_members(), len(os.sched_getaffinity(0)) - 1)
    if after.members:
        assert after.shared_jobs > before.shared_jobs


def test_several_callers_at_a_time(models: dict[str, Model]) -> None:
    """Members serve one op at a time; others go on alone, and all get their own results."""
    jobs = []
    for seed, config in enumerate(LINEAR * 2):
        x, w = operands(config, 1 + seed, 512, 600, seed)
        jobs.append((models[config.name], x, w, multiply(models[config.name], x, w)))

    def again(job: tuple) -> None:
        model, x, w, expected = job
        for _ in range(150):
            assert_same_bits(multiply(model, x, w), expected, "y")

    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(again, jobs))


def test_pauses_between_ops(models: dict[str, Model], session: InferenceSession) -> None:
    """Members leave after a while without work, at any moment of the next op, and come again."""
    config = LINEAR[0]
    x, w = operands(config, 2, 512, 600, 1)
    expected = multiply(models[config.name], x, w)
    rng = np.random.default_rng(0)
    for pause_us in rng.uniform(150, 260, 400):
        end = perf_counter_ns() + pause_us * 1e3
        while perf_counter_ns() < end:
            pass
        assert_same_bits(multiply(models[config.name], x, w), expected, "y")
    test_members_take_part(models, session)


@pytest.mark.parametrize("how", ["alone", "no team"])
def test_without_members(how: str) -> None:
    """On one CPU the team has none; a process without a team takes the runtime's parallel loop."""
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMBERS, how], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]


def test_more_members_than_threads() -> None:
    """Seven members on the runtime's threads: queued, late, called off, and gone in the end."""
    program = Path(__file__).with_name("team_of_seven.mojo")
    mojo, kernels = Path(sys.executable).with_name("mojo"), kernels_dir()
    found = subprocess.run(
        [mojo, "run", "-I", kernels.parent, program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr[-3000:]


@pytest.mark.parametrize(
    ("files", "members"),
    [
        ({}, MOST_MEMBERS),
        ({"cpu.max": "max 100000\n"}, MOST_MEMBERS),
        ({"cpu.max": "250000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 0),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, MOST_MEMBERS),
        ({"cpu.cfs_quota_us": "400000\n", "cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu.max": "what"}, MOST_MEMBERS),
    ],
)
def test_members_within_the_quota_of_a_container(
    tmp_path: Path, files: dict[str, str], members: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert most_members((tmp_path / "cpu.max", tmp_path / "cpu.cfs_quota_us")) == members


@pytest.mark.parametrize(
    ("own", "folder", "name"),
    [
        ("0::/system.slice/engine.service\n", "system.slice/engine.service", "cpu.max"),
        ("0::/system.slice/engine.service\n", "system.slice", "cpu.max"),
        ("3:cpu,cpuacct:/a/b\n2:cpuset:/c\n", "cpu/a/b", "cpu.cfs_quota_us"),
    ],
)
def test_members_within_the_quota_of_a_service(
    tmp_path: Path, own: str, folder: str, name: str
) -> None:
    """A quota of the process's own cgroup, or of one above it, counts beside the root's."""
    (tmp_path / "own").write_text(own)
    (tmp_path / "cpu.max").write_text("800000 100000\n")
    files = quota_files(tmp_path, tmp_path / "own")
    assert most_members(files) == 7
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "cpu.cfs_period_us").write_text("100000\n")
    text = "300000 100000\n" if name == "cpu.max" else "300000\n"
    (tmp_path / folder / name).write_text(text)
    assert most_members(files) == 2


@pytest.mark.parametrize("own", ["", "what\n", "0::/\n", "0::/../../other\n"])
def test_cgroups_that_are_not_seen(tmp_path: Path, own: str) -> None:
    """Only the root is looked at, as in a container."""
    (tmp_path / "own").write_text(own)
    root = quota_files(tmp_path, tmp_path / "missing")
    assert quota_files(tmp_path, tmp_path / "own") == root
    assert root == [tmp_path / "cpu.max", tmp_path / "cpu" / "cpu.cfs_quota_us"]
