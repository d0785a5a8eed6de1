"""The loop between windows, engine and ledger, with an engine that writes nothing sensible."""

import json
import random
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from coachwhip.batch.counts import BatchCounts
from coachwhip.batch.input_file import BatchInput
from coachwhip.batch.journal import Origin
from coachwhip.batch.ledger import Ledger
from coachwhip.batch.paths import BatchPaths
from coachwhip.batch.run import BatchRun
from coachwhip.batch.window import windows
from coachwhip.errors import EngineError
from coachwhip.outputs import CompletionOutput, RequestOutput
from tests.batch.requests import completion, read_lines, write_lines
from tests.batch.test_validate import LINES


class RandomEngine:
    """Ends each request after a random number of steps; may fail at a step, or one request."""

    def __init__(self, fails_at: int | None = None, bad_prompt: str | None = None) -> None:
        self._draw, self._fails_at, self._bad_prompt = random.Random(1), fails_at, bad_prompt
        self.live: dict[str, RequestOutput] = {}
        self.most_live = self.steps = 0
        self.aborted: list[str] = []

    def add_request(self, request_id, prompt_token_ids, params, prompt, *, priority, cache_salt):
        output = RequestOutput(
            request_id, prompt, prompt_token_ids, [CompletionOutput(0, "", [])], finished=False
        )
        self.live[request_id] = output
        self.most_live = max(self.most_live, len(self.live))
        return output

    def step(self) -> list[RequestOutput]:
        self.steps += 1
        if self.steps == self._fails_at:
            raise EngineError("the step failed")
        grown = list(self.live.values())
        for output in grown:
            made = output.outputs[0]
            made.token_ids.append(5)
            made.text += "x"
            if output.prompt == self._bad_prompt:
                made.finish_reason, output.error, output.finished = "error", "not finite", True
            elif self._draw.random() < 0.5:
                made.finish_reason, output.finished = "length", True
            if output.finished:
                del self.live[output.request_id]
        return grown

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        del self.live[request_id]


class Setup:
    """A batch in a folder, run by an engine that is given."""

    def __init__(self, folder, frontend, source, count: int) -> None:
        self.paths = BatchPaths.of(str(folder / "out.jsonl"))
        self._source = BatchInput(str(source), folder)
        self._frontend, self._count = frontend, count

    def run(self, engine, seats: int = 7, stopping=lambda: False) -> BatchCounts:
        ledger = Ledger(self.paths, Origin("i", "m", {}), self._source)
        counts = BatchCounts(self._count)
        wanted = np.ones(self._count, bool)
        stretch = windows(self._source, wanted, self._frontend, 64, None)
        try:
            BatchRun(engine, stretch, ledger, counts, seats, stopping).run()
            if counts.done == counts.total:
                ledger.complete()
        finally:
            ledger.close()
        return counts


@pytest.fixture
def batch(tmp_path, frontend, monkeypatch):
    monkeypatch.setattr("coachwhip.batch.window.MOST_LINES", 10)
    lines = [completion(f"r{i}", f"We have {i}", n=1 + i % 3) for i in range(45)]
    lines.append(completion("long", "x " * 5000))
    source = write_lines(tmp_path / "in.jsonl", lines)
    return Setup(tmp_path, frontend, source, len(lines))


def test_every_line_is_stored_once_whatever_ends_first(batch):
    engine = RandomEngine()
    counts = batch.run(engine)
    found = read_lines(batch.paths.output)
    assert sorted(line["custom_id"] for line in found) == sorted(
        ["long", *(f"r{i}" for i in range(45))]
    )
    for line in found:
        if line["custom_id"] != "long":
            choices = line["response"]["body"]["choices"]
            assert [c["index"] for c in choices] == list(range(1 + int(line["custom_id"][1:]) % 3))
    assert (counts.done, counts.failed) == (46, 1)
    assert engine.most_live == 7 and engine.aborted == []
    assert counts.generated_tokens == sum(
        line["response"]["body"]["usage"]["completion_tokens"]
        for line in found
        if line["error"] is None
    )


def test_a_step_that_fails_ends_the_run_with_what_is_stored(batch):
    engine = RandomEngine(fails_at=6)
    with pytest.raises(EngineError):
        batch.run(engine)
    stored = read_lines(batch.paths.partial)
    assert 0 < len(stored) < 46 and not batch.paths.output.exists()
    assert all(
        line["response"]["status_code"] == 200 or line["custom_id"] == "long" for line in stored
    )
    assert not engine.live and engine.aborted


def test_a_request_that_fails_is_a_failed_line_and_the_others_go_on(batch):
    counts = batch.run(RandomEngine(bad_prompt="We have 4"))
    assert counts.failed == 2
    found = {line["custom_id"]: line for line in read_lines(batch.paths.errors)}
    assert found.keys() == {"long", "r4"}
    assert found["r4"]["response"]["status_code"] == 500
    assert "not finite" in found["r4"]["error"]["message"]


def test_a_wish_to_stop_ends_what_was_begun(batch):
    engine = RandomEngine()
    counts = batch.run(engine, stopping=lambda: engine.steps >= 5)
    stored = read_lines(batch.paths.partial)
    assert 0 < counts.done == len(stored) < 46
    assert engine.aborted == [] and not engine.live


def test_a_wish_to_stop_is_heard_among_lines_that_are_refused(tmp_path, frontend, monkeypatch):
    monkeypatch.setattr("coachwhip.batch.window.MOST_LINES", 10)
    lines = [completion(f"r{i}", [9999]) for i in range(100)]
    batch = Setup(tmp_path, frontend, write_lines(tmp_path / "in.jsonl", lines), len(lines))
    asked = iter(range(1000))
    counts = batch.run(RandomEngine(), stopping=lambda: next(asked) >= 5)
    assert 0 < counts.done == len(read_lines(batch.paths.partial)) < 100


def test_memory_does_not_grow_with_the_lines(tmp_path, frontend, monkeypatch):
    monkeypatch.setattr("coachwhip.batch.window.MOST_LINES", 256)
    monkeypatch.setattr("os.fsync", lambda fd: None)

    def peak(count: int) -> int:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        with (folder / "in.jsonl").open("w") as file:
            for i in range(count):
                file.write(json.dumps(completion(f"request-{i}", f"Hello {i}", seed=i)) + "\n")
        setup = Setup(folder, frontend, folder / "in.jsonl", count)
        tracemalloc.start()
        assert setup.run(RandomEngine(), seats=64).done == count
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    many, few = LINES // 4, LINES // 16
    peak(few)  # what is made once
    # The JSON parser remembers some strings, up to a number; a request that stays is kilobytes.
    assert (peak(many) - peak(few)) / (many - few) < 1000
