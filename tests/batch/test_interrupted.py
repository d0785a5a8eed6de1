"""Runs that are killed, interrupted, or out of disk: nothing is lost, nothing is there twice."""

import os
import random
import resource
import signal
import time

import pytest

from tests.batch.command import run, size, start, wait_for
from tests.batch.requests import chat, completion, read_lines, timeless, write_lines

KILLS = int(os.environ.get("COACHWHIP_BATCH_KILLS", "4"))
"""How often a run is killed; each takes the seconds of a start. From 20 on the run is longer."""


def mixed_line(i: int) -> dict:
    """Returns requests of all kinds: greedy, sampled with and without a seed, several texts, log
    probabilities, shared prefixes, and some that fail."""
    name, common = f"r{i}", "The state of the Union is strong. " * (1 + i % 3 * 8)
    match i % 5:
        case 0:
            return completion(name, common + str(i), max_tokens=30)
        case 1:
            return completion(name, f"We {i}", temperature=1, max_tokens=25, n=2)
        case 2:
            return chat(name, common + str(i), temperature=0.8, seed=i, max_tokens=35)
        case 3:
            return chat(name, str(i), logprobs=True, top_logprobs=2, max_tokens=20)
    return completion(name, "x " * 5000) if i % 20 == 4 else completion(name)


@pytest.fixture(scope="module")
def lines() -> list[dict]:
    return [mixed_line(i) for i in range(200 if KILLS >= 20 else 80)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, lines) -> list[dict]:
    """What the lines give in one go."""
    folder = tmp_path_factory.mktemp("undisturbed")
    source = write_lines(folder / "in.jsonl", lines)
    code, err = run(source, folder / "out.jsonl")
    assert code == 3, err  # all done, and some failed as they should
    found = read_lines(folder / "out.jsonl")
    assert sorted(line["custom_id"] for line in found) == sorted(x["custom_id"] for x in lines)
    failed = [line["custom_id"] for line in found if line["error"]]
    assert 0 < len(failed) == len(read_lines(folder / "out.errors.jsonl"))
    return timeless(found)


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path, lines, undisturbed):
    draw = random.Random(KILLS)
    kills = attempt = 0
    while kills < KILLS:
        attempt += 1
        source = write_lines(tmp_path / f"in{attempt}.jsonl", lines)
        output = tmp_path / f"out{attempt}.jsonl"
        partial = tmp_path / f"out{attempt}.jsonl.partial"
        while not output.exists():
            process = start(source, output)
            if kills < KILLS:
                # At any moment of the start, or while lines are written.
                if draw.random() < 0.25:
                    time.sleep(draw.random() * 2)
                else:
                    before = size(partial)
                    wait_for(lambda b=before, p=partial: size(p) > b, process)
                    time.sleep(draw.random() * 0.2)
                process.kill()
            _, err = process.communicate()
            kills += process.returncode == -signal.SIGKILL
            assert process.returncode in (3, -signal.SIGKILL), err
        code, err = run(source, output)  # a kill may have come before the error file
        assert code == 3, err
        found = read_lines(output)
        names = [line["custom_id"] for line in found]
        assert len(names) == len(set(names)) == len(lines)
        assert timeless(found) == undisturbed
        failed = [line for line in found if line["error"]]
        assert read_lines(tmp_path / f"out{attempt}.errors.jsonl") == failed
        assert not partial.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stores_what_is_in_flight(tmp_path, lines, undisturbed, number):
    source = write_lines(tmp_path / "in.jsonl", lines)
    output, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    process = start(source, output, "--max-inflight", "4")
    assert wait_for(lambda: size(partial) > 0, process)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "finishing what is in flight" in err and "the same command goes on" in err
    stored = read_lines(partial)
    assert 0 < len(stored) < len(lines) and not output.exists()
    code, err = run(source, output)
    assert code == 3, err
    assert timeless(read_lines(output)) == undisturbed
    assert f"{len(stored)} of them by earlier runs" in err


@pytest.mark.slow
def test_a_full_disk_ends_a_run_and_loses_nothing(tmp_path, lines, undisturbed):
    source = write_lines(tmp_path / "in.jsonl", lines)
    output, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    code, err = run(source, output, preexec_fn=small_files)
    assert code == 1
    assert f"coachwhip: error: {partial}: cannot be written: File too large" in err
    assert "Traceback" not in err and not output.exists()
    stored = read_lines(partial)
    assert 0 < len(stored) < len(lines)
    code, err = run(source, output)
    assert code == 3, err
    assert timeless(read_lines(output)) == undisturbed
