"""`sample`: tokens from rows of logits, beside torch's argmax, multinomial and sort.

Logits are normally distributed; at temperature 1/4 they spread about as a model's do. What has to
be done at least is read them once. Programs draw different tokens, so the check is that each
program's tokens are among those that torch's filters keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from max.graph import ops

from bench.kernels.case import Benchmark, Case, GraphSpec, Work
from bench.kernels.graphs import F32, I32, in_type
from bench.kernels.memory import Memory, buffer, tensor
from coachwhip_graphs.sample import REALS, WHOLES, sample

MODEL = "sample"
RIVAL = "max-argmax"
SEED = 5
"""Of rows, edits and torch's draws."""


@dataclass(frozen=True)
class Settings:
    """What every row of a case asks for; `edits` tokens of it have penalties, and `masked` rows a
    mask of all tokens each, which changes nothing."""

    name: str
    temperature: float = 0.25
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    top_k: int = 0
    edits: int = 0
    masked: bool = False


GREEDY = Settings("greedy", temperature=0.0)
CASES = (
    GREEDY,
    Settings("temperature"),
    Settings("temperature, masked", masked=True),
    Settings("top-p 0.9", top_p=0.9),
    Settings(
        "all filters",
        top_p=0.9,
        min_p=0.02,
        repetition=1.1,
        presence=0.5,
        frequency=0.1,
        top_k=50,
        edits=200,
    ),
)


@dataclass(frozen=True)
class Shape:
    """One case: rows of logits, all with the same settings."""

    rows: int
    vocab: int
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.settings.name}, {self.rows} x {self.vocab}"

    @property
    def work(self) -> Work:
        return Work(self.rows * self.vocab * 4, "read")


def own_graph() -> GraphSpec:
    types = [
        in_type(F32, "rows", "vocab"),
        in_type(F32, "rows", REALS),
        in_type(I32, "rows", WHOLES),
        in_type(I32, "starts"),
        in_type(I32, "edits"),
        in_type(I32, "edits"),
        in_type(F32, "edits"),
        in_type(I32, "rows"),
        in_type(I32, "masks", "mask_words"),
    ]
    return GraphSpec(MODEL, types, lambda inputs: [sample(*(v.tensor for v in inputs))])


def rival_graph() -> GraphSpec:
    return GraphSpec(
        RIVAL, [in_type(F32, "rows", "vocab")], lambda inputs: [ops.argmax(inputs[0].tensor)]
    )


@dataclass(frozen=True)
class Edits:
    """Tokens of each row's text, distinct, and how often it has them."""

    token: torch.Tensor
    times: torch.Tensor

    @staticmethod
    def of(shape: Shape) -> Edits:
        draws = torch.Generator().manual_seed(SEED)
        count = min(shape.settings.edits, shape.vocab)
        drawn = [torch.randperm(shape.vocab, generator=draws)[:count] for _ in range(shape.rows)]
        times = torch.randint(1, 4, (shape.rows, count), generator=draws)
        return Edits(torch.stack(drawn), times)


def settings_operands(shape: Shape, edits: Edits) -> list[torch.Tensor]:
    """Returns the operands of the op but the logits."""
    s, count = shape.settings, edits.token.shape[1]
    words = -(-shape.vocab // 32)
    real = (s.temperature, s.top_p, s.min_p, s.repetition, s.presence, s.frequency)
    return [
        torch.tensor([real] * shape.rows),
        torch.tensor([(s.top_k, SEED, 0, r) for r in range(shape.rows)], dtype=torch.int32),
        torch.arange(shape.rows + 1, dtype=torch.int32) * count,
        edits.token.flatten().int(),
        edits.times.flatten().int(),
        torch.zeros(edits.token.numel()),
        torch.arange(shape.rows, dtype=torch.int32) if s.masked else -torch.ones(shape.rows).int(),
        torch.full((shape.rows, words), -1, dtype=torch.int32),
    ]


def filtered(logits: torch.Tensor, s: Settings, edits: Edits) -> torch.Tensor:
    """The usual filters in torch: penalties, temperature, top-k, top-p by sorting, min-p."""
    if s.edits:
        value = logits.gather(1, edits.token)
        value = torch.where(value > 0, value / s.repetition, value * s.repetition)
        value = value - s.frequency * edits.times - s.presence
        logits = logits.scatter(1, edits.token, value)
    logits = logits / s.temperature
    if s.top_k:
        least = logits.topk(min(s.top_k, logits.shape[1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if s.top_p < 1:
        ordered, token = logits.sort(descending=True)
        probability = ordered.softmax(-1)
        above = probability.cumsum(-1) - probability
        ordered = ordered.masked_fill(above >= s.top_p, -torch.inf)
        logits = torch.empty_like(logits).scatter_(1, token, ordered)
    if s.min_p:
        top = logits.amax(-1, keepdim=True)
        logits = logits.masked_fill((logits - top).exp() < s.min_p, -torch.inf)
    return logits


def with_torch(logits: torch.Tensor, s: Settings, edits: Edits) -> torch.Tensor:
    if s.temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return filtered(logits, s, edits).softmax(-1).multinomial(1)


def _case(shape: Shape, models: Mapping[str, Any], memory: Memory) -> Case:
    settings, edits = shape.settings, Edits.of(shape)
    arena = memory.arena()
    blocks = arena.blocks(shape.rows, shape.vocab)
    size = blocks[0].numel()
    given = [buffer(block) for block in blocks]
    more = [buffer(operand) for operand in settings_operands(shape, edits)]
    model, builtin = models[MODEL], models.get(RIVAL)
    rivals = {"torch": lambda: with_torch(blocks[arena.next_block(size)], settings, edits)}
    if settings.temperature == 0 and builtin is not None:
        rivals["MAX argmax"] = lambda: builtin.execute(given[arena.next_block(size)])

    def outputs() -> dict[str, torch.Tensor]:
        torch.manual_seed(SEED)
        found = {
            "ours": tensor(model.execute(given[0], *more)),
            "torch": with_torch(blocks[0], settings, edits),
        }
        if settings.temperature == 0:
            return {name: tokens.float() for name, tokens in found.items()}
        kept = filtered(blocks[0], settings, edits) > -torch.inf
        return {name: kept.gather(1, tokens).float() for name, tokens in found.items()}

    return Case(
        "sample",
        shape.name,
        shape.work,
        lambda: model.execute(given[arena.next_block(size)], *more),
        rivals,
        outputs,
        shape.rows,
        tolerance=0.0,
    )


def benchmark(quick: bool) -> Benchmark:
    """One row and a batch, over a small vocabulary and one of a large model."""
    vocabs = (1000,) if quick else (8192, 131072)
    shapes = [Shape(r, v, s) for s in CASES for v in vocabs for r in ((2,) if quick else (1, 32))]

    def cases(models: Mapping[str, Any], memory: Memory) -> Iterator[Case]:
        for shape in shapes:
            yield _case(shape, models, memory)

    return Benchmark([own_graph()], [rival_graph()], cases)
