"""The next stretch of an input, translated for the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..openai import ApiError, Frontend, Job, translate
from ..outputs import RequestOutput
from .input_file import BatchInput
from .ledger import Finished
from .line import parse_line
from .order import PrefixOrder
from .records import failed_record, good_record

MOST_LINES, MOST_BYTES = 4096, 8 << 20
"""Where a window ends: what is ordered together, and held in memory together."""


@dataclass
class BatchRequest:
    """A line that runs: its job, and what the engine gave for it so far."""

    custom_id: str
    body_digest: str
    job: Job
    outputs: dict[int, RequestOutput] = field(default_factory=dict)
    """Finished texts by choice."""

    def finished(self) -> Finished | None:
        """Returns the line of the output once all its texts are there."""
        if len(self.outputs) < len(self.job.requests):
            return None
        try:
            outputs = [self.outputs[i] for i in range(len(self.job.requests))]
            record = good_record(self.custom_id, self.job.response(outputs))
        except ApiError as error:
            record = failed_record(self.custom_id, error)
        return Finished(self.custom_id, self.body_digest, record)


@dataclass
class Window:
    """Requests that are ordered together, text by text."""

    texts: list[tuple[BatchRequest, int]]
    """(request, which of its texts), by place in the order."""
    order: PrefixOrder
    refused: list[Finished]
    """Lines that cannot be served."""


def windows(
    source: BatchInput, wanted: np.ndarray, frontend: Frontend, grain: int, seed: int | None
) -> Iterator[Window]:
    """Yields the wanted lines of an input, window by window.

    Args:
        source: The input, which was validated.
        wanted: [lines] bool, which of them to run.
        frontend: The model.
        grain: Tokens between prefixes that can be found; 0 keeps the order of the input.
        seed: The engine's; decides the seeds of bodies that give none.
    """
    requests: list[BatchRequest] = []
    refused: list[Finished] = []
    size = 0
    for place, (_, raw) in enumerate(source.lines()):
        if not wanted[place]:
            continue
        line = parse_line(raw)
        size += len(raw)
        try:
            job = translate(line.body, frontend, default_seed=line.seed(seed))
            requests.append(BatchRequest(line.custom_id, line.body_digest, job))
        except ApiError as error:
            record = failed_record(line.custom_id, error)
            refused.append(Finished(line.custom_id, line.body_digest, record))
        if len(requests) + len(refused) >= MOST_LINES or size >= MOST_BYTES:
            yield _window(requests, refused, grain)
            requests, refused, size = [], [], 0
    if requests or refused:
        yield _window(requests, refused, grain)


def _window(requests: list[BatchRequest], refused: list[Finished], grain: int) -> Window:
    texts = [(one, choice) for one in requests for choice in range(len(one.job.requests))]
    prompts = [one.job.requests[choice] for one, choice in texts]
    order = PrefixOrder([(p.cache_salt or "", p.prompt_token_ids) for p in prompts], grain)
    return Window(texts, order, refused)
