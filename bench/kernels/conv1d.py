"""`conv1d`: MAX's builtin convolution and torch beside it, decode and prefill, 8 layers per call.

Windows come from memory; in prefill the rows do too, and the outputs go there. Our pool keeps a
sequence's layers side by side; the rivals' pool holds the same windows as so many more slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from max.driver import Buffer
from max.nn.state_space import causal_conv1d_varlen_fwd
from torch.nn import functional as F

from bench.kernels import state_op
from bench.kernels.case import LAYERS, Benchmark, Case, GraphSpec, Work
from bench.kernels.graphs import BF16, F32, in_place, in_type
from bench.kernels.memory import TORCH_OF, Arena, Memory, buffer, layers
from bench.kernels.state_op import Operands, Places, Rival, StateShape
from coachwhip_graphs import ops as our_ops

D_CONV = 4
HISTORY = D_CONV - 1


@dataclass(frozen=True)
class Shape(StateShape):
    """One case; `width` is the number of channels."""

    kernel, unit = "conv1d", "channels"

    @property
    def work(self) -> Work:
        size = TORCH_OF[self.dtype].itemsize
        flop = 2 * D_CONV * self.tokens * self.width
        if self.rows == 1:
            windows = self.batch * HISTORY * self.width
            return Work(2 * windows * size, "update", flop)
        return Work(2 * self.tokens * self.width * size, "copy", flop)


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
        in_type(dtype, "tokens", shape.width),
        in_type(F32, D_CONV, shape.width),
        in_type(F32, shape.width),
    ]
    pool = in_place(dtype, "slots", LAYERS, HISTORY, shape.width)
    return state_op.own_graph(shape, count, pool, layer, our_ops.conv1d)


def rival_graph(shape: Shape) -> GraphSpec:
    """MAX's convolution, in float32."""
    layer = [
        in_type(F32, "tokens", shape.width),
        in_type(F32, shape.width, D_CONV),
        in_type(F32, shape.width),
    ]

    def op(operands: list[Any], pool: Any, starts: Any, old: Any, slots: Any) -> Any:
        return causal_conv1d_varlen_fwd(*operands, pool, starts, slots, old, channels_last=True)

    return state_op.rival_graph(shape, in_place(F32, "slots", shape.width, HISTORY), layer, op)


class Data:
    """A shape's weights by layer, its rows, and where their windows lie.

    Attributes:
        rows: Rows of each layer, by place.
        places: Of the windows.
    """

    def __init__(self, shape: Shape, arena: Arena) -> None:
        r = torch.Generator().manual_seed(2)
        channels, batch, tokens = shape.width, shape.batch, shape.tokens
        self.weight = torch.randn(LAYERS, D_CONV, channels, generator=r) / D_CONV
        self.bias = torch.randn(LAYERS, channels, generator=r)
        if shape.rows == 1:
            size = LAYERS * batch * HISTORY * channels
            count = arena.data.numel() // size
            rows = torch.randn(LAYERS, tokens, channels, generator=r).to(arena.data.dtype)
            self.rows = [rows] * count
            slots = [range(i * batch, (i + 1) * batch) for i in range(count)]
        else:
            # Rows walk through the arena; one slot, at its end, is enough.
            size = LAYERS * tokens * channels
            self.rows = list(arena.blocks(LAYERS, tokens, channels))
            last = len(arena.blocks(LAYERS, HISTORY, channels)) - 1
            slots = [range(last, last + 1)] * len(self.rows)
        self.places = Places(shape, slots, lambda: arena.next_block(size))
        self._rows = {id(rows): [buffer(x) for x in rows] for rows in self.rows}
        self._bias = [buffer(b) for b in self.bias]

    def operands(self, taps: list[Buffer]) -> Operands:
        """Returns rows, taps and bias, by place and layer."""
        return [
            list(zip(self._rows[id(rows)], taps, self._bias, strict=True)) for rows in self.rows
        ]


def _torch_rivals(shape: Shape, data: Data, arena: Arena) -> dict[str, Rival]:
    windows = arena.blocks(HISTORY, shape.width)
    wanted = [[torch.tensor(layer) for layer in place] for place in data.places.homes]
    weight, bias = (v.to(arena.data.dtype) for v in (data.weight, data.bias))
    kinds = {"torch conv1d": (torch_conv, [w.T.contiguous()[:, None] for w in weight])}
    if shape.rows == 1:
        kinds["torch sum"] = (torch_sum, list(weight))
    view = (LAYERS, shape.batch, shape.rows, shape.width)

    def steps(step, taps) -> Any:
        def run() -> Any:
            i = data.places.walk()
            found = []
            for home, x, *weights in zip(
                wanted[i], data.rows[i].view(view), taps, bias, strict=True
            ):
                y, windows[home] = step(windows[home], x, *weights)
                found.append(y)
            return found

        return run

    def from_zero(step, taps) -> Any:
        empty = torch.zeros(shape.batch, HISTORY, shape.width, dtype=weight.dtype)
        each = zip(data.rows[0].view(view), taps, bias, strict=True)
        y = [step(empty, *given)[0].reshape(shape.tokens, -1) for given in each]
        return lambda: layers(y)

    return {name: (steps(*kind), from_zero(*kind)) for name, kind in kinds.items()}


def _case(shape: Shape, models: Mapping[str, Any], memory: Memory) -> Case:
    arena = memory.arena(shape.dtype)
    data = Data(shape, arena)
    rivals = _torch_rivals(shape, data, arena)
    if (builtin := state_op.builtin(shape, models)) is not None:
        operands = data.operands([buffer(w.T.contiguous()) for w in data.weight])
        pool = buffer(arena.blocks(shape.width, HISTORY))
        rivals["MAX builtin"] = state_op.builtin_rival(builtin, shape, data.places, pool, operands)
    pool = buffer(arena.blocks(LAYERS, HISTORY, shape.width))
    operands = data.operands([buffer(w) for w in data.weight])
    hot = shape.rows == 1
    return state_op.state_case(shape, models, data.places, pool, operands, rivals, hot)


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
    return state_op.state_benchmark(shapes, own_graph, rival_graph, _case)
