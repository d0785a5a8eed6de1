"""`conv1d`: MAX's builtin convolution and torch beside it, decode and prefill, 8 layers per call.

Windows come from memory; in prefill the rows do too, and the outputs go there. Our pool keeps a
sequence's layers side by side; the rivals' pool holds the same windows as so many more slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from max.nn.state_space import causal_conv1d_varlen_fwd
from torch.nn import functional as F

from bench.kernels.case import LAYERS, Benchmark, Case, GraphSpec, Work
from bench.kernels.graphs import BF16, BOOL, F32, I32, U32, in_place, in_type
from bench.kernels.memory import TORCH_OF, Arena, Memory, buffer, indices, layers
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


def own_graph(shape: Shape, count: int = LAYERS) -> GraphSpec:
    """Our convolution for the first `count` layers of the pool."""
    dtype = BF16 if shape.dtype == "bfloat16" else F32
    layer = [
        in_type(dtype, "tokens", shape.channels),
        in_type(F32, D_CONV, shape.channels),
        in_type(F32, shape.channels),
    ]
    types = [
        in_place(dtype, "slots", LAYERS, HISTORY, shape.channels),
        in_type(I32, "starts"),
        in_type(I32, "batch"),
        in_type(I32, "tokens"),
        *layer * count,
    ]

    def build(inputs: list[Any]) -> list[Any]:
        pool, plan = inputs[0].buffer, [v.tensor for v in inputs[1:4]]
        rows = [v.tensor for v in inputs[4:]]
        return [
            our_ops.conv1d(pool, *rows[3 * i : 3 * i + 3], *plan, layer=i) for i in range(count)
        ]

    return GraphSpec(shape.model if count > 1 else f"{shape.model}-single", types, build)


def rival_graph(channels: int) -> GraphSpec:
    """MAX's convolution, once for each layer, from and to slots of its own."""
    layer = [
        in_type(F32, "tokens", channels),
        in_type(F32, channels, D_CONV),
        in_type(F32, channels),
        in_type(U32, "batch"),
    ]
    types = [
        in_place(F32, "slots", channels, HISTORY),
        in_type(I32, "starts"),
        in_type(BOOL, "batch"),
        *layer * LAYERS,
    ]

    def build(inputs: list[Any]) -> list[Any]:
        pool, starts, old = inputs[0].buffer, inputs[1].tensor, inputs[2].tensor
        found = []
        for i in range(3, len(inputs), len(layer)):
            *rows, slots = (v.tensor for v in inputs[i : i + len(layer)])
            found.append(
                causal_conv1d_varlen_fwd(*rows, pool, starts, slots, old, channels_last=True)
            )
        return found

    return GraphSpec(f"max-conv1d-{channels}", types, build)


class Data:
    """A shape's weights by layer, its rows, and where their windows lie.

    Attributes:
        size: Values that one call walks past in the arena.
        rows: Rows of each layer, by place.
        slots: Slots of our pool, by place.
        homes: Slots of the rivals' pool, by place and layer.
    """

    def __init__(self, shape: Shape, arena: Arena) -> None:
        r = torch.Generator().manual_seed(2)
        channels, batch, tokens = shape.channels, shape.batch, shape.tokens
        self.weight = torch.randn(LAYERS, D_CONV, channels, generator=r) / D_CONV
        self.bias = torch.randn(LAYERS, channels, generator=r)
        kind = arena.data.dtype
        if shape.rows == 1:
            self.size = LAYERS * batch * HISTORY * channels
            places = arena.data.numel() // self.size
            rows = torch.randn(LAYERS, tokens, channels, generator=r).to(kind)
            self.rows = [rows] * places
            self.slots = [range(i * batch, (i + 1) * batch) for i in range(places)]
        else:
            # Rows walk through the arena; one slot, at its end, is enough.
            self.size = LAYERS * tokens * channels
            self.rows = list(arena.blocks(LAYERS, tokens, channels))
            last = len(arena.blocks(LAYERS, HISTORY, channels)) - 1
            self.slots = [range(last, last + 1)] * len(self.rows)
        self.homes = [
            [[s * LAYERS + layer for s in place] for layer in range(LAYERS)] for place in self.slots
        ]


def _torch_rivals(shape: Shape, data: Data, arena: Arena) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns torch's steps, and the same from zero windows with their outputs."""
    windows = arena.blocks(HISTORY, shape.channels)
    wanted = [[torch.tensor(layer) for layer in place] for place in data.homes]
    weight, bias = (v.to(arena.data.dtype) for v in (data.weight, data.bias))
    kinds = {"torch conv1d": (torch_conv, [w.T.contiguous()[:, None] for w in weight])}
    if shape.rows == 1:
        kinds["torch sum"] = (torch_sum, list(weight))
    view = (LAYERS, shape.batch, shape.rows, shape.channels)

    def steps(step, taps) -> Any:
        def run() -> Any:
            i = arena.next_block(data.size)
            found = []
            for home, x, *weights in zip(
                wanted[i], data.rows[i].view(view), taps, bias, strict=True
            ):
                y, windows[home] = step(windows[home], x, *weights)
                found.append(y)
            return found

        return run

    def zero(step, taps) -> Any:
        empty = torch.zeros(shape.batch, HISTORY, shape.channels, dtype=weight.dtype)
        each = zip(data.rows[0].view(view), taps, bias, strict=True)
        y = [step(empty, *given)[0].reshape(shape.tokens, -1) for given in each]
        return lambda: layers(y)

    rivals = {name: steps(*kind) for name, kind in kinds.items()}
    return rivals, {name: zero(*kind) for name, kind in kinds.items()}


def _case(shape: Shape, models: Mapping[str, Any], memory: Memory) -> Case:
    arena = memory.arena(shape.dtype)
    data = Data(shape, arena)
    pool = buffer(arena.blocks(LAYERS, HISTORY, shape.channels))
    starts = indices(range(0, shape.tokens + 1, shape.rows))
    read = [indices(s) for s in data.slots]
    write = [indices(v for slot in s for v in [-1] * (shape.rows - 1) + [slot]) for s in data.slots]
    weights = [[buffer(w), buffer(b)] for w, b in zip(data.weight, data.bias, strict=True)]

    def operands(rows: torch.Tensor) -> list[Any]:
        return [v for x, w in zip(rows, weights, strict=True) for v in (buffer(x), *w)]

    first = operands(data.rows[0])
    given = [first if rows is data.rows[0] else operands(rows) for rows in data.rows]
    model, single = models[shape.model], models.get(f"{shape.model}-single")

    def ours() -> Any:
        i = arena.next_block(data.size)
        return model.execute(pool, starts, read[i], write[i], *given[i])

    def hot() -> Any:
        return model.execute(pool, starts, read[0], write[0], *first)

    def one_call() -> Any:
        i = arena.next_block(data.size)
        return single.execute(pool, starts, read[i], write[i], *first[:3])

    rivals, zero = _torch_rivals(shape, data, arena)
    none, nowhere = indices([-1] * shape.batch), indices([-1] * shape.tokens)
    zero["ours"] = lambda: layers(model.execute(pool, starts, none, nowhere, *first))
    builtin = models.get(f"max-conv1d-{shape.channels}")
    if builtin is not None and shape.dtype == "float32":
        taps = [
            [buffer(w.T.contiguous()), b] for w, (_, b) in zip(data.weight, weights, strict=True)
        ]
        flat = buffer(arena.blocks(shape.channels, HISTORY))
        named = [[indices(layer, torch.uint32) for layer in place] for place in data.homes]
        old, new = (indices([v] * shape.batch, torch.bool) for v in (True, False))
        args = [
            [v for j, home in enumerate(place) for v in (xs[3 * j], *taps[j], home)]
            for xs, place in zip(given, named, strict=True)
        ]
        rivals["MAX builtin"] = lambda: builtin.execute(
            flat, starts, old, *args[arena.next_block(data.size)]
        )
        zero["MAX builtin"] = lambda: layers(builtin.execute(flat, starts, new, *args[0]))
    return Case(
        "conv1d",
        shape.name,
        shape.work,
        ours,
        rivals,
        lambda: {name: run() for name, run in zero.items()},
        shape.tokens,
        hot if shape.rows == 1 else None,
        one_call if single is not None and shape.rows == 1 else None,
        LAYERS,
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
    own |= {f"{s.model} single": own_graph(s, 1) for s in shapes if s.rows == s.batch == 1}
    channels = sorted({shape.channels for shape in shapes})

    def cases(models: Mapping[str, Any], memory: Memory) -> Iterator[Case]:
        for shape in shapes:
            yield _case(shape, models, memory)

    return Benchmark([*own.values()], [rival_graph(c) for c in channels], cases)
