"""`ssm_scan`: MAX's builtin scan and torch beside it, decode and prefill, 8 layers per call.

FLOP are counted as 5 for each state value and row: h = decay * h (1), h += u * B (2), y += C * h
(2). That is one multiply and two FMAs, three instructions for 16 values: `slots` counts 6.

States come from memory, rows too in prefill; bytes count the states alone. Our pool keeps a
sequence's layers side by side; the rivals' pool holds the same states as so many more slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from max.nn.state_space import mamba2_ssd_chunk_scan_varlen_fwd_inplace
from torch.nn import functional as F

from bench.kernels import state_op
from bench.kernels.case import LAYERS, Benchmark, Case, GraphSpec, Work
from bench.kernels.graphs import BF16, F32, in_place, in_type
from bench.kernels.memory import TORCH_OF, Memory, buffer, layers
from bench.kernels.state_op import Places, Rival, StateShape
from coachwhip_graphs import ops as our_ops
from models.train.ssd import ssd_chunked

HEADDIM, DSTATE, NGROUPS = 64, 128, 8
CHUNK = 64
"""Chunk of the torch prefill: with 128 the fastest of 16 to 256, at 64 heads on two cores."""


@dataclass(frozen=True)
class Shape(StateShape):
    """One case; `width` is the number of heads."""

    kernel, unit = "ssm_scan", "heads"

    @property
    def state(self) -> int:
        return self.width * HEADDIM * DSTATE

    @property
    def work(self) -> Work:
        values = self.state * self.tokens
        size = TORCH_OF[self.dtype].itemsize
        return Work(
            bytes=2 * self.batch * self.state * size,
            pattern="update",
            flop=5 * values,
            slots=6 * values,
        )


class Data:
    """Random inputs of one layer of a shape, and where each sequence's rows begin."""

    def __init__(self, shape: Shape, layer: int) -> None:
        r = torch.Generator().manual_seed(100 + layer)
        t, h, dtype = shape.tokens, shape.width, TORCH_OF[shape.dtype]
        self.xbc = torch.randn(t, h * HEADDIM + 2 * NGROUPS * DSTATE, generator=r).to(dtype)
        self.dt = torch.randn(t, h, generator=r).to(dtype)
        self.a = -torch.rand(h, generator=r).mul(2).exp()
        self.d, self.dt_bias = torch.randn(2, h, generator=r)
        self.starts = range(0, t + 1, shape.rows)
        x, b, c = self.xbc.split([h * HEADDIM, NGROUPS * DSTATE, NGROUPS * DSTATE], 1)
        self.x = x.reshape(t, h, HEADDIM).contiguous()
        self.b, self.c = (v.reshape(t, NGROUPS, DSTATE).contiguous() for v in (b, c))


def torch_step(states: torch.Tensor, slots: torch.Tensor, data: Data) -> torch.Tensor:
    """One token per sequence: gather, update, scatter; states [slots, nheads, headdim, dstate]."""
    state = states[slots]
    y = torch_advance(state, data)
    states[slots] = state
    return y


def torch_advance(state: torch.Tensor, data: Data) -> torch.Tensor:
    """Advances states [batch, nheads, headdim, dstate] in place by a token; returns y."""
    dt = F.softplus(data.dt + data.dt_bias)
    decay = torch.exp(dt * data.a)
    per_group = data.x.shape[1] // NGROUPS
    b, c = (v.repeat_interleave(per_group, 1) for v in (data.b, data.c))
    state.mul_(decay[..., None, None]).add_((dt[..., None] * data.x)[..., None] * b[:, :, None])
    return torch.matmul(state, c[..., None])[..., 0] + data.d[:, None] * data.x


def torch_prefill(data: Data) -> torch.Tensor:
    """All rows of one sequence from a zero state, in chunks; returns y."""
    dt = F.softplus(data.dt + data.dt_bias)
    x, dt, b, c = (v.float()[None] for v in (data.x, dt, data.b, data.c))
    y, _ = ssd_chunked(x, dt, data.a, b, c, CHUNK)
    return y[0] + data.d[:, None] * data.x


def own_graph(shape: Shape, count: int = LAYERS) -> GraphSpec:
    """Our scan for the first `count` layers of the pool."""
    dtype = BF16 if shape.dtype == "bfloat16" else F32
    h = shape.width
    layer = [
        in_type(dtype, "tokens", h * HEADDIM + 2 * NGROUPS * DSTATE),
        in_type(dtype, "tokens", h),
        *(in_type(F32, h) for _ in range(3)),
    ]
    pool = in_place(dtype, "slots", LAYERS, h, HEADDIM * DSTATE)
    scan = partial(our_ops.ssm_scan, headdim=HEADDIM, dstate=DSTATE)
    return state_op.own_graph(shape, count, pool, layer, scan)


def rival_graph(shape: Shape) -> GraphSpec:
    """MAX's scan, in float32."""
    h = shape.width
    layer = [
        in_type(F32, "tokens", h, HEADDIM),
        in_type(F32, "tokens", h),
        in_type(F32, h),
        in_type(F32, "tokens", NGROUPS, DSTATE),
        in_type(F32, "tokens", NGROUPS, DSTATE),
        in_type(F32, h),
        in_type(F32, h),
    ]

    def op(operands: list[Any], pool: Any, starts: Any, old: Any, slots: Any) -> Any:
        return mamba2_ssd_chunk_scan_varlen_fwd_inplace(*operands, pool, starts, old, slots)

    return state_op.rival_graph(shape, in_place(F32, "slots", h, HEADDIM, DSTATE), layer, op)


def _torch_rivals(
    shape: Shape, data: list[Data], states: torch.Tensor, places: Places
) -> dict[str, Rival]:
    if shape.rows > 1:
        return {
            "torch chunked": (
                lambda: [torch_prefill(d) for d in data],
                lambda: layers([torch_prefill(d) for d in data]),
            )
        }
    wanted = [[torch.tensor(layer) for layer in place] for place in places.homes]

    def steps() -> None:
        for home, d in zip(wanted[places.walk()], data, strict=True):
            torch_step(states, home, d)

    empty = torch.zeros(shape.batch, *states.shape[1:], dtype=states.dtype)
    return {
        "torch step": (
            steps,
            lambda: layers([torch_advance(empty.zero_(), d) for d in data]),
        )
    }


def _case(shape: Shape, models: Mapping[str, Any], memory: Memory) -> Case:
    data = [Data(shape, layer) for layer in range(LAYERS)]
    arena = memory.arena(shape.dtype)
    size = shape.batch * LAYERS * shape.state
    count = arena.data.numel() // size
    slots = [range(i * shape.batch, (i + 1) * shape.batch) for i in range(count)]
    places = Places(shape, slots, lambda: arena.next_block(size))
    states = arena.blocks(shape.width, HEADDIM, DSTATE)
    rivals = _torch_rivals(shape, data, states, places)
    if (builtin := state_op.builtin(shape, models)) is not None:
        theirs = [[buffer(v) for v in (d.x, d.dt, d.a, d.b, d.c, d.d, d.dt_bias)] for d in data]
        rivals["MAX builtin"] = state_op.builtin_rival(
            builtin, shape, places, buffer(states), [theirs] * count
        )
    pool = buffer(arena.blocks(LAYERS, shape.width, HEADDIM * DSTATE))
    given = [[buffer(v) for v in (d.xbc, d.dt, d.a, d.d, d.dt_bias)] for d in data]
    hot = shape.batch == shape.rows == 1
    return state_op.state_case(shape, models, places, pool, [given] * count, rivals, hot)


def benchmark(quick: bool) -> Benchmark:
    """The scan at 64 heads, and prefill at the 40 heads of a 4-billion-parameter model's layer."""
    if quick:
        shapes = [Shape(8, 2, 1), Shape(8, 1, 32)]
    else:
        shapes = [
            Shape(64, 1, 1),
            Shape(64, 32, 1),
            Shape(64, 32, 1, "bfloat16"),
            Shape(64, 1, 512),
            Shape(40, 1, 512),
            Shape(40, 1, 512, "bfloat16"),
        ]
    return state_op.state_benchmark(shapes, own_graph, rival_graph, _case)
