"""`conv1d`: MAX's builtin convolution and torch beside it, decode and prefill.

Windows come from memory; in prefill the rows do too, and the outputs go there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from max.nn.state_space import causal_conv1d_varlen_fwd
from torch.nn import functional as F

from bench.kernels.case import Benchmark, Case, GraphSpec, Work
from bench.kernels.graphs import BF16, BOOL, F32, I32, U32, in_place, in_type
from bench.kernels.memory import TORCH_OF, Memory, buffer, indices, tensor
from coachwhip_graphs import ops as our_ops

D_CONV = 4
HISTORY = D_CONV - 1


@dataclass(frozen=True)
class Shape:
    """One case: `batch` sequences of `rows` rows each."""

    channels: int
    batch: int
    rows: int
    dtype: str = "float32"

    @property
    def name(self) -> str:
        what = f"decode batch {self.batch}" if self.rows == 1 else f"prefill {self.rows}"
        return f"{what}, {self.channels} channels, {self.dtype}"

    @property
    def model(self) -> str:
        return f"conv1d-{self.channels}-{self.dtype}"

    @property
    def tokens(self) -> int:
        return self.batch * self.rows

    @property
    def work(self) -> Work:
        size = TORCH_OF[self.dtype].itemsize
        flop = 2 * D_CONV * self.tokens * self.channels
        if self.rows == 1:
            windows = self.batch * HISTORY * self.channels
            return Work(2 * windows * size, "update", flop)
        return Work(2 * self.tokens * self.channels * size, "copy", flop)


def torch_conv(window: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    """torch's convolution; window [batch, d_conv - 1, channels], x [batch, rows, channels].

    weight is [channels, 1, d_conv]. Returns y and the new window.
    """
    full = torch.cat([window, x], 1)
    y = F.conv1d(full.transpose(1, 2), weight, bias, groups=x.shape[2])
    return F.silu(y).transpose(1, 2), full[:, -HISTORY:]


def torch_sum(window: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor):
    """The same as products and a sum, for one row: faster than torch's convolution there."""
    full = torch.cat([window, x], 1)
    y = (full * weight).sum(1) + bias
    return F.silu(y)[:, None], full[:, 1:]


def own_graph(shape: Shape) -> GraphSpec:
    dtype = BF16 if shape.dtype == "bfloat16" else F32
    types = [
        in_place(dtype, "slots", 1, HISTORY, shape.channels),
        in_type(dtype, "tokens", shape.channels),
        in_type(F32, D_CONV, shape.channels),
        in_type(F32, shape.channels),
        in_type(I32, "starts"),
        in_type(I32, "batch"),
        in_type(I32, "tokens"),
    ]

    def build(inputs: list[Any]) -> list[Any]:
        pool, *rest = inputs
        return [our_ops.conv1d(pool.buffer, *(v.tensor for v in rest), layer=0)]

    return GraphSpec(shape.model, types, build)


def rival_graph(channels: int) -> GraphSpec:
    types = [
        in_type(F32, "tokens", channels),
        in_type(F32, channels, D_CONV),
        in_type(F32, channels),
        in_place(F32, "slots", channels, HISTORY),
        in_type(I32, "starts"),
        in_type(U32, "batch"),
        in_type(BOOL, "batch"),
    ]

    def build(i: list[Any]) -> list[Any]:
        rows, pool, tail = [v.tensor for v in i[:3]], i[3].buffer, [v.tensor for v in i[4:]]
        return [causal_conv1d_varlen_fwd(*rows, pool, *tail, channels_last=True)]

    return GraphSpec(f"max-conv1d-{channels}", types, build)


def _case(shape: Shape, models: Mapping[str, Any], memory: Memory) -> Case:
    r = torch.Generator().manual_seed(2)
    arena = memory.arena(shape.dtype)
    channels, batch, tokens = shape.channels, shape.batch, shape.tokens
    weight = torch.randn(D_CONV, channels, generator=r) / D_CONV
    bias = torch.randn(channels, generator=r)
    starts = indices(range(0, tokens + 1, shape.rows))
    rotated = batch * HISTORY * channels if shape.rows == 1 else tokens * channels
    places = arena.data.numel() // rotated
    if shape.rows == 1:
        rows = [torch.randn(tokens, channels, generator=r).to(arena.data.dtype)] * places
        slots = [range(i * batch, (i + 1) * batch) for i in range(places)]
    else:
        # Rows walk through the arena; one window, at its end, is enough.
        rows = list(arena.blocks(tokens, channels))
        last = len(arena.blocks(HISTORY, channels)) - 1
        slots = [range(last, last + 1)] * places
    given = [buffer(v) for v in rows] if shape.rows > 1 else [buffer(rows[0])] * places
    pool = buffer(arena.blocks(1, HISTORY, channels))
    fixed = [buffer(weight), buffer(bias), starts]
    read = [indices(s) for s in slots]
    write = [indices(v for slot in s for v in [-1] * (shape.rows - 1) + [slot]) for s in slots]
    none, nowhere = indices([-1] * batch), indices([-1] * tokens)
    model = models[shape.model]

    def ours() -> Any:
        i = arena.next_block(rotated)
        return model.execute(pool, given[i], *fixed, read[i], write[i])

    def hot() -> Any:
        return model.execute(pool, given[0], *fixed, read[0], write[0])

    windows = arena.blocks(HISTORY, channels)
    wanted = [torch.tensor(list(s)) for s in slots]
    cast = weight.to(arena.data.dtype), bias.to(arena.data.dtype)
    kinds = {"torch conv1d": (torch_conv, cast[0].T.contiguous()[:, None])}
    if shape.rows == 1:
        kinds["torch sum"] = (torch_sum, cast[0])

    def torch_step(step, taps):
        def run() -> Any:
            i = arena.next_block(rotated)
            x = rows[i].view(batch, shape.rows, channels)
            y, windows[wanted[i]] = step(windows[wanted[i]], x, taps, cast[1])
            return y

        return run

    def torch_zero(step, taps):
        x = rows[0].view(batch, shape.rows, channels)
        empty = torch.zeros(batch, HISTORY, channels, dtype=x.dtype)
        return step(empty, x, taps, cast[1])[0].reshape(tokens, channels).float()

    rivals = {name: torch_step(*kind) for name, kind in kinds.items()}
    builtin = models.get(f"max-conv1d-{channels}")
    if builtin is not None and shape.dtype == "float32":
        taps = buffer(weight.T.contiguous())
        flat = buffer(arena.blocks(channels, HISTORY))
        named = [indices(s, torch.uint32) for s in slots]
        old, new = (indices([v] * batch, torch.bool) for v in (True, False))

        def max_step() -> Any:
            i = arena.next_block(rotated)
            return builtin.execute(given[i], taps, fixed[1], flat, starts, named[i], old)

        rivals["MAX builtin"] = max_step

    def outputs() -> dict[str, torch.Tensor]:
        y = tensor(model.execute(pool, given[0], *fixed, none, nowhere))
        found = {"ours": y.float()}
        found |= {name: torch_zero(*kind) for name, kind in kinds.items()}
        if "MAX builtin" in rivals:
            got = builtin.execute(given[0], taps, fixed[1], flat, starts, named[-1], new)
            found["MAX builtin"] = tensor(got)
        return found

    return Case(
        "conv1d",
        shape.name,
        shape.work,
        ours,
        rivals,
        outputs,
        tokens,
        hot if shape.rows == 1 else None,
        2e-2 if shape.dtype == "bfloat16" else 1e-3,
    )


def benchmark(quick: bool) -> Benchmark:
    """The channels of a layer with 64 heads of 64 and 8 groups of state 128."""
    if quick:
        shapes = [Shape(256, 2, 1), Shape(256, 1, 32)]
    else:
        shapes = [
            Shape(6144, 1, 1),
            Shape(6144, 32, 1),
            Shape(6144, 1, 512),
            Shape(6144, 1, 512, "bfloat16"),
        ]
    own = {shape.model: own_graph(shape) for shape in shapes}
    channels = sorted({shape.channels for shape in shapes})

    def cases(models: Mapping[str, Any], memory: Memory) -> Iterator[Case]:
        for shape in shapes:
            yield _case(shape, models, memory)

    return Benchmark([*own.values()], [rival_graph(c) for c in channels], cases)
