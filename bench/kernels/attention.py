"""`attention`: MAX's flash attention over its own pages and torch's over contiguous keys.

Keys and values come from memory. In decode each sequence holds `context` keys, one of them new;
FLOP are 4 for each query value and key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from max.dtype import DType
from max.graph import ops
from max.nn.attention import MHAMaskVariant
from max.nn.kernels import flash_attention_ragged, store_k_cache_ragged, store_v_cache_ragged
from max.nn.kv_cache import KVCacheInputsPerDevice, MHAKVCacheParams
from torch.nn import functional as F

from bench.kernels.case import Benchmark, Case, GraphSpec, Work, each
from bench.kernels.graphs import BF16, CPU, F32, I32, I64, U32, in_place, in_type
from bench.kernels.memory import TORCH_OF, Memory, buffer, indices, tensor
from coachwhip_graphs import ops as our_ops

PAGE = 128
"""Tokens per page; MAX's pages hold multiples of 128."""
D = 128


@dataclass(frozen=True)
class Shape:
    """One case: `batch` sequences of `context` keys, the last `rows` of them new."""

    heads: int
    kv_heads: int
    batch: int
    rows: int
    context: int
    dtype: str = "float32"

    @property
    def name(self) -> str:
        what = f"decode batch {self.batch}, {self.context} keys" if self.rows == 1 else "prefill"
        what = what if self.rows == 1 else f"{what} {self.rows}"
        return f"{what}, {self.heads}:{self.kv_heads} heads, {self.dtype}"

    @property
    def model(self) -> str:
        return f"attention-{self.heads}-{self.kv_heads}-{self.dtype}"

    @property
    def tokens(self) -> int:
        return self.batch * self.rows

    @property
    def pages(self) -> int:
        """Pages of one sequence."""
        return self.context // PAGE

    @property
    def kv_values(self) -> int:
        """Keys and values of the whole batch."""
        return self.batch * self.context * 2 * self.kv_heads * D

    @property
    def work(self) -> Work:
        first = self.context - self.rows + 1
        pairs = self.batch * self.rows * (first + self.context) // 2
        flop = 4 * self.heads * D * pairs
        return Work(self.kv_values * TORCH_OF[self.dtype].itemsize, "read", flop, slots=flop)


def own_graph(shape: Shape) -> GraphSpec:
    dtype = BF16 if shape.dtype == "bfloat16" else F32
    types = [
        in_place(dtype, "pages", 1, 2, shape.kv_heads, PAGE, D),
        in_type(dtype, "tokens", shape.heads * D),
        in_type(dtype, "tokens", shape.kv_heads * D),
        in_type(dtype, "tokens", shape.kv_heads * D),
        in_type(I32, "starts"),
        in_type(I32, "batch"),
        in_type(I32, "batch", "table"),
    ]

    def build(inputs: list[Any]) -> list[Any]:
        pages, *rest = inputs
        operands = [v.tensor for v in rest]
        return [our_ops.attention(pages.buffer, *operands, layer=0, scale=D**-0.5)]

    return GraphSpec(shape.model, types, build)


def rival_graph(shape: Shape) -> GraphSpec:
    cache = MHAKVCacheParams(
        dtype=DType.float32,
        head_dim=D,
        num_layers=1,
        devices=[CPU],
        n_kv_heads=shape.kv_heads,
        page_size=PAGE,
    )
    types = [
        in_type(F32, "tokens", shape.heads, D),
        in_type(F32, "tokens", shape.kv_heads, D),
        in_type(F32, "tokens", shape.kv_heads, D),
        in_type(U32, "starts"),
        in_place(F32, "pages", 2, 1, PAGE, shape.kv_heads, D),
        in_type(I64, 1),  # values per page
        in_type(U32, "batch"),  # keys before this step
        in_type(U32, "batch", "table"),
        in_type(U32, 1),  # longest prompt
        in_type(U32, 1),  # longest context
        in_type(I64, 4),  # batch, longest prompt, partitions, longest context
    ]

    def build(inputs: list[Any]) -> list[Any]:
        q, k, v, starts = (i.tensor for i in inputs[:4])
        pages, stride, lengths, table, prompt, context, plan = inputs[4:]
        kv = KVCacheInputsPerDevice(
            pages.buffer,
            lengths.tensor,
            table.tensor,
            prompt.tensor,
            context.tensor,
            stride.tensor,
            attention_dispatch_metadata=plan.tensor,
        )
        layer = ops.constant(0, U32, CPU)
        store_k_cache_ragged(kv, k, starts, layer)
        store_v_cache_ragged(kv, v, starts, layer)
        causal = MHAMaskVariant.CAUSAL_MASK
        return [flash_attention_ragged(cache, q, starts, kv, layer, causal, scale=D**-0.5)]

    return GraphSpec(f"max-{shape.model}", types, build)


def _case(shape: Shape, models: Mapping[str, Any], memory: Memory) -> Case:
    arena = memory.arena(shape.dtype)
    r = torch.Generator().manual_seed(5)
    b, t, old = shape.batch, shape.tokens, shape.context - shape.rows
    q, k, v = (
        torch.randn(t, n, D, generator=r).to(arena.data.dtype)
        for n in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    size = shape.kv_values
    places = arena.data.numel() // size
    tables = [
        torch.arange(i * b * shape.pages, (i + 1) * b * shape.pages).view(b, -1)
        for i in range(places)
    ]
    pages = arena.blocks(1, 2, shape.kv_heads, PAGE, D)
    pool = buffer(pages)
    new = [buffer(x.view(t, -1)) for x in (q, k, v)]
    where = [indices(range(0, t + 1, shape.rows)), indices([old] * b)]
    ours_table = [buffer(x.int()) for x in tables]
    model = models[shape.model]

    def ours() -> Any:
        return model.execute(pool, *new, *where, ours_table[arena.next_block(size)])

    contiguous = arena.blocks(2, b, shape.kv_heads, shape.context, D)
    query = q.view(b, shape.rows, shape.heads, D).transpose(1, 2)
    added = [x.view(b, shape.rows, shape.kv_heads, D).transpose(1, 2) for x in (k, v)]

    def attend(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        keys[:, :, old:], values[:, :, old:] = added
        return F.scaled_dot_product_attention(
            query, keys, values, is_causal=shape.rows > 1, enable_gqa=True
        )

    rivals = {"torch sdpa": lambda: attend(*contiguous[arena.next_block(size)])}
    builtin = models.get(f"max-{shape.model}")
    if builtin is not None:
        theirs = [buffer(x) for x in (q, k, v)]
        begin = indices(range(0, t + 1, shape.rows), torch.uint32)
        layout = arena.blocks(2, 1, PAGE, shape.kv_heads, D)
        their_pool, stride = buffer(layout), indices([layout[0].numel()], torch.int64)
        lengths = indices([old] * b, torch.uint32)
        their_table = [buffer(x.to(torch.uint32)) for x in tables]
        plan = [
            indices([shape.rows], torch.uint32),
            indices([shape.context], torch.uint32),
            indices([b, shape.rows, 1, shape.context], torch.int64),
        ]

        def max_step() -> Any:
            table = their_table[arena.next_block(size)]
            return builtin.execute(*theirs, begin, their_pool, stride, lengths, table, *plan)

        rivals["MAX flash attention"] = max_step

    def outputs() -> dict[str, torch.Tensor]:
        # Each lays out the pages in its own way, so all of them get the same keys first.
        past = torch.randn(2, b, shape.kv_heads, shape.context, D, generator=r)
        past = past.to(arena.data.dtype)
        place = past.view(2, b, shape.kv_heads, shape.pages, PAGE, D)
        pages[: b * shape.pages, 0] = place.permute(1, 3, 0, 2, 4, 5).flatten(0, 1)
        found = {"ours": tensor(model.execute(pool, *new, *where, ours_table[0])).float()}
        if builtin is not None:
            layout[: b * shape.pages, :, 0] = place.permute(1, 3, 0, 4, 2, 5).flatten(0, 1)
            args = (*theirs, begin, their_pool, stride, lengths, their_table[0], *plan)
            found["MAX flash attention"] = tensor(builtin.execute(*args)).flatten(1)
        y = attend(*past).transpose(1, 2)
        return found | {"torch sdpa": y.reshape(t, -1).float()}

    return Case(
        "attention",
        shape.name,
        shape.work,
        ours,
        rivals,
        outputs,
        t,
        tolerance=3e-2 if shape.dtype == "bfloat16" else 1e-3,
    )


def benchmark(quick: bool) -> Benchmark:
    """32 query and 8 key/value heads of 128."""
    if quick:
        shapes = [Shape(4, 2, 2, 1, PAGE), Shape(4, 2, 1, PAGE, PAGE)]
    else:
        shapes = [
            Shape(32, 8, 1, 1, 2048),
            Shape(32, 8, 8, 1, 2048),
            Shape(32, 8, 8, 1, 2048, "bfloat16"),
            Shape(32, 8, 1, 512, 512),
        ]
    kinds = {shape.model: shape for shape in shapes}.values()

    rivals = [rival_graph(shape) for shape in kinds if shape.dtype == "float32"]
    return Benchmark([own_graph(shape) for shape in kinds], rivals, each(shapes, _case))
