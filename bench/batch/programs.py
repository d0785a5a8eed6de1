"""The ways to answer the same requests: a batch with and without its cache, and plain loops."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from bench.batch.workload import Sizes, prompts, write_batch
from coachwhip.batch.input_file import BatchInput
from coachwhip.batch.paths import BatchPaths
from coachwhip.batch.prepare import PreparedBatch
from coachwhip.batch.run import BatchRun
from coachwhip.engine import Engine
from coachwhip.sampling.params import SamplingParams


@dataclass(frozen=True)
class Measured:
    """What one program took."""

    program: str
    seconds: float
    requests: int
    cached_share: float
    """Of the prompts' tokens, from 0 to 1."""


def run_batch(engine: Engine, name: str, source: Path, output: Path) -> Measured:
    """Runs a batch as the command does; the time is from the first request to the last rename."""
    lines = BatchInput(str(source), output.parent)
    prepared = PreparedBatch(engine, lines, BatchPaths.of(str(output)), (), (1, 1), None, print)
    counts = prepared.begin()
    seats = 2 * engine.config.max_num_seqs
    BatchRun(engine, prepared.windows(), prepared.ledger, counts, seats).run()
    prepared.ledger.complete()
    counts.end()
    prepared.ledger.close()
    lines.close()
    return Measured(name, counts.seconds, counts.done, counts.hit_share)


def run_one_by_one(
    engine: Engine, name: str, wanted: list[list[int]], new_tokens: int
) -> tuple[Measured, list[str]]:
    """Runs the prompts in a loop, each after the one before; returns their texts as well."""
    params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
    texts, cached, started = [], 0, time.monotonic()
    for i, prompt in enumerate(wanted):
        output = engine.add_request(str(i), prompt, params)
        while engine.has_unfinished:
            engine.step()
        texts.append(output.outputs[0].text)
        cached += output.num_cached_tokens
    seconds = time.monotonic() - started
    return Measured(name, seconds, len(wanted), cached / sum(map(len, wanted))), texts


def run_all(engine: Engine, sizes: Sizes, folder: Path) -> list[Measured]:
    """Runs every program on the same requests, and compares their texts.

    Raises:
        ValueError: Two programs gave different texts.
    """
    wanted = prompts(sizes, engine.model.spec.vocab_size)
    source = folder / "in.jsonl"
    write_batch(source, wanted, sizes.new_tokens)
    uncached = {"enable_prefix_caching": False}
    found = [
        run_batch(engine.with_options(), "batch", source, folder / "cached.jsonl"),
        run_batch(
            engine.with_options(**uncached), "batch, caching off", source, folder / "none.jsonl"
        ),
    ]
    loop, texts = run_one_by_one(engine.with_options(), "one by one", wanted, sizes.new_tokens)
    found.append(loop)
    for name in ("cached", "none"):
        rows = map(json.loads, (folder / f"{name}.jsonl").read_text("utf-8").splitlines())
        batch = {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in rows}
        if [batch[str(i)] for i in range(len(wanted))] != texts:
            raise ValueError(f"the texts of {name}.jsonl are not those of the loop")
    return found
