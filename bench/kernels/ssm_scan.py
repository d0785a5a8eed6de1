"""`ssm_scan`: MAX's builtin scan and torch beside it, decode and prefill, 8 layers per call.

FLOP are counted as 5 for each state value and row: h = decay * h (1), h += u * B (2), y += C * h
(2). That is one multiply and two FMAs, three instructions for 16 values: `slots` counts 6.

States come from memory, rows too in prefill; bytes count the states alone. Our pool keeps a
sequence's layers side by side; the rivals' pool holds the same states as so many more slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from max.nn.state_space import mamba2_ssd_chunk_scan_varlen_fwd_inplace
from torch.nn import functional as F

from bench.kernels.case import LAYERS, Benchmark, Case, GraphSpec, Work
from bench.kernels.graphs import BF16, BOOL, F32, I32, U32, in_place, in_type
from bench.kernels.memory import TORCH_OF, Memory, buffer, indices, layers
from coachwhip_graphs import ops as our_ops
from models.train.ssd import ssd_chunked

HEADDIM, DSTATE, NGROUPS = 64, 128, 8
CHUNK = 64
"""Chunk of the torch prefill: with 128 the fastest of 16 to 256, at 64 heads on two cores."""


@dataclass(frozen=True)
class Shape:
    """One case: `batch` sequences of `rows` rows each."""

    nheads: int
    batch: int
    rows: int
    dtype: str = "float32"

    @property
    def name(self) -> str:
        what = f"decode batch {self.batch}" if self.rows == 1 else f"prefill {self.rows}"
        return f"{what}, {self.nheads} heads, {self.dtype}"

    @property
    def model(self) -> str:
        return f"ssm_scan-{self.nheads}-{self.dtype}"

    @property
    def tokens(self) -> int:
        return self.batch * self.rows

    @property
    def state(self) -> int:
        return self.nheads * HEADDIM * DSTATE

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
        t, h, dtype = shape.tokens, shape.nheads, TORCH_OF[shape.dtype]
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
    h = shape.nheads
    layer = [
        in_type(dtype, "tokens", h * HEADDIM + 2 * NGROUPS * DSTATE),
        in_type(dtype, "tokens", h),
        *(in_type(F32, h) for _ in range(3)),
    ]
    types = [
        in_place(dtype, "slots", LAYERS, h, HEADDIM * DSTATE),
        in_type(I32, "starts"),
        in_type(I32, "batch"),
        in_type(I32, "tokens"),
        *layer * count,
    ]

    def build(inputs: list[Any]) -> list[Any]:
        pool, plan = inputs[0].buffer, [v.tensor for v in inputs[1:4]]
        rows, each = [v.tensor for v in inputs[4:]], len(layer)
        return [
            our_ops.ssm_scan(
                pool,
                *rows[i * each : (i + 1) * each],
                *plan,
                layer=i,
                headdim=HEADDIM,
                dstate=DSTATE,
            )
            for i in range(count)
        ]

    return GraphSpec(shape.model if count > 1 else f"{shape.model}-single", types, build)


def rival_graph(nheads: int) -> GraphSpec:
    """MAX's scan, once for each layer, from and to slots of its own."""
    layer = [
        in_type(F32, "tokens", nheads, HEADDIM),
        in_type(F32, "tokens", nheads),
        in_type(F32, nheads),
        in_type(F32, "tokens", NGROUPS, DSTATE),
        in_type(F32, "tokens", NGROUPS, DSTATE),
        in_type(F32, nheads),
        in_type(F32, nheads),
        in_type(U32, "batch"),
    ]
    types = [
        in_place(F32, "slots", nheads, HEADDIM, DSTATE),
        in_type(I32, "starts"),
        in_type(BOOL, "batch"),
        *layer * LAYERS,
    ]

    def build(inputs: list[Any]) -> list[Any]:
        pool, starts, old = inputs[0].buffer, inputs[1].tensor, inputs[2].tensor
        found = []
        for i in range(3, len(inputs), len(layer)):
            *rows, slots = (v.tensor for v in inputs[i : i + len(layer)])
            found.append(mamba2_ssd_chunk_scan_varlen_fwd_inplace(*rows, pool, starts, old, slots))
        return found

    return GraphSpec(f"max-ssm_scan-{nheads}", types, build)


def _case(shape: Shape, models: Mapping[str, Any], memory: Memory) -> Case:
    data = [Data(shape, layer) for layer in range(LAYERS)]
    arena = memory.arena(shape.dtype)
    block = shape.batch * LAYERS * shape.state
    places = arena.data.numel() // block
    slots = [range(i * shape.batch, (i + 1) * shape.batch) for i in range(places)]
    pool = buffer(arena.blocks(LAYERS, shape.nheads, HEADDIM * DSTATE))
    starts = indices(data[0].starts)
    given = [[buffer(v) for v in (d.xbc, d.dt, d.a, d.d, d.dt_bias)] for d in data]
    fixed = [v for layer in given for v in layer]
    read = [indices(s) for s in slots]
    # The state is stored after the last row of a sequence only.
    last = [[-1] * (shape.rows - 1) + [slot] for slot in range(places * shape.batch)]
    write = [indices(v for slot in s for v in last[slot]) for s in slots]
    model = models[shape.model]
    single = models.get(f"{shape.model}-single")

    def ours() -> Any:
        i = arena.next_block(block)
        return model.execute(pool, starts, read[i], write[i], *fixed)

    def hot() -> Any:
        return model.execute(pool, starts, read[0], write[0], *fixed)

    def one_call() -> Any:
        i = arena.next_block(block)
        return single.execute(pool, starts, read[i], write[i], *given[0])

    states = arena.blocks(shape.nheads, HEADDIM, DSTATE)
    # Where our pool keeps a layer of a slot, counted in states.
    homes = [[[s * LAYERS + layer for s in place] for layer in range(LAYERS)] for place in slots]
    rivals = {}
    zero = {}
    none, nowhere = indices([-1] * shape.batch), indices([-1] * shape.tokens)
    zero["ours"] = lambda: layers(model.execute(pool, starts, none, nowhere, *fixed))
    if shape.rows == 1:
        wanted = [[torch.tensor(layer) for layer in place] for place in homes]

        def torch_steps() -> None:
            for home, d in zip(wanted[arena.next_block(block)], data, strict=True):
                torch_step(states, home, d)

        rivals["torch step"] = torch_steps
        empty = torch.zeros(shape.batch, *states.shape[1:], dtype=states.dtype)
        zero["torch step"] = lambda: layers([torch_advance(empty.zero_(), d) for d in data])
    else:
        rivals["torch chunked"] = lambda: [torch_prefill(d) for d in data]
        zero["torch chunked"] = lambda: layers([torch_prefill(d) for d in data])
    builtin = models.get(f"max-ssm_scan-{shape.nheads}")
    if builtin is not None and shape.dtype == "float32":
        theirs = [[buffer(v) for v in (d.x, d.dt, d.a, d.b, d.c, d.d, d.dt_bias)] for d in data]
        named = [[indices(layer, torch.uint32) for layer in place] for place in homes]
        args = [
            [v for layer, home in zip(theirs, place, strict=True) for v in (*layer, home)]
            for place in named
        ]
        flat = buffer(states)
        old, new = (indices([v] * shape.batch, torch.bool) for v in (True, False))
        rivals["MAX builtin"] = lambda: builtin.execute(
            flat, starts, old, *args[arena.next_block(block)]
        )
        zero["MAX builtin"] = lambda: layers(builtin.execute(flat, starts, new, *args[0]))
    decode_one = shape.batch == 1 and shape.rows == 1
    return Case(
        "ssm_scan",
        shape.name,
        shape.work,
        ours,
        rivals,
        lambda: {name: run() for name, run in zero.items()},
        shape.tokens,
        hot if decode_one else None,
        one_call if single is not None and shape.rows == 1 else None,
        LAYERS,
        2e-2 if shape.dtype == "bfloat16" else 1e-3,
    )


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
    own = {shape.model: own_graph(shape) for shape in shapes}
    own |= {f"{s.model} single": own_graph(s, 1) for s in shapes if s.rows == s.batch == 1}
    heads = sorted({shape.nheads for shape in shapes})

    def cases(models: Mapping[str, Any], memory: Memory) -> Iterator[Case]:
        for shape in shapes:
            yield _case(shape, models, memory)

    return Benchmark([*own.values()], [rival_graph(h) for h in heads], cases)
