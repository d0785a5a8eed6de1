"""Inputs of a step graph: what a ragged batch is, and the pools it changes in place."""

from __future__ import annotations

from dataclasses import dataclass, fields

from max.dtype import DType
from max.graph import BufferType, BufferValue, DeviceRef, TensorType, TensorValue

from .spec import LayerKind, ModelSpec


@dataclass(frozen=True)
class PoolSpec:
    """Shape of the rows of one pool and its dtype; a pool is `[rows, *row_shape]`."""

    name: str
    row_shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class CacheSpec:
    """Types of the caches of a step graph.

    `ssm_dtype`: float32, float16 or bfloat16. `kv_dtype`: float32 or bfloat16. `page_size`: tokens
    per page, a multiple of 8. `head`: the multi-token-prediction head runs, so pages hold its keys
    and values, and each slot its carry row: the post-norm hidden state of the slot's last token.
    """

    ssm_dtype: DType
    kv_dtype: DType
    page_size: int
    head: bool = False


def slot_pools(spec: ModelSpec, dtype: DType, cache: CacheSpec) -> tuple[PoolSpec, ...]:
    """Returns the slot-major pools: one row is one slot, the state of all Mamba layers.

    Returns:
        `conv` [layers, d_conv - 1, conv_dim] in the model dtype, then `ssm`
        [layers, nheads, headdim * dstate], then with a head `carry` [hidden] in the model dtype;
        empty for a model without Mamba layers.
    """
    layers = spec.count(LayerKind.MAMBA2)
    if not layers:
        return ()
    m = spec.mamba
    return (
        PoolSpec("conv", (layers, m.d_conv - 1, m.conv_dim), dtype),
        PoolSpec("ssm", (layers, m.nheads, m.headdim * m.dstate), cache.ssm_dtype),
        *((PoolSpec("carry", (spec.hidden_size,), dtype),) if cache.head else ()),
    )


def page_pools(spec: ModelSpec, cache: CacheSpec) -> tuple[PoolSpec, ...]:
    """Returns the page pool: one row is one page, the K/V of all attention layers.

    Returns:
        `pages` [layers, 2, num_kv_heads, page_size, head_dim], the trunk's layers first, then
        those of the MTP head if it runs; empty without attention layers.
    """
    layers = spec.count(LayerKind.ATTENTION)
    if cache.head:
        layers += spec.count_mtp(LayerKind.ATTENTION)
    if not layers:
        return ()
    a = spec.attention
    return (
        PoolSpec("pages", (layers, 2, a.num_kv_heads, cache.page_size, a.head_dim), cache.kv_dtype),
    )


@dataclass(frozen=True)
class StepInputs:
    """The tensors of one ragged batch inside a graph, and its pools.

    Attributes:
        tokens: [tokens] i32 token ids.
        seq_start: [batch + 1] i32; first row of each sequence.
        read_slot: [batch] i32; slot with the state before the first row, -1 = zeros.
        write_slot: [tokens] i32; slot for the state after each row, -1 = none.
        kv_length: [batch] i32; tokens of each sequence already in its pages.
        block_table: [batch, pages] i32; pages of each sequence, -1 past the end.
        output_rows: [outputs] i32; rows whose logits are wanted.
        sample_real: [outputs, 6] f32; how the token after each output row is chosen, see
            `sample.sample`.
        sample_whole: [outputs, 4] i32; the same, whole numbers.
        edit_start: [outputs + 1] i32; first edit of each output row.
        edit_token: [edits] i32; token whose logit is changed.
        edit_count: [edits] i32; how often the token occurred.
        edit_bias: [edits] f32; added to the logit.
        mask_row: [outputs] i32; mask of each output row, -1 = none.
        masks: [masks, ceil(vocab / 32)] i32; one bit per token, 1 = it may be chosen.
        conv: Window pool, or None without Mamba layers.
        ssm: State pool, or None without Mamba layers.
        carry: Carry pool, or None without Mamba layers or without a head.
        pages: K/V pool, or None without attention layers.
    """

    tokens: TensorValue
    seq_start: TensorValue
    read_slot: TensorValue
    write_slot: TensorValue
    kv_length: TensorValue
    block_table: TensorValue
    output_rows: TensorValue
    sample_real: TensorValue
    sample_whole: TensorValue
    edit_start: TensorValue
    edit_token: TensorValue
    edit_count: TensorValue
    edit_bias: TensorValue
    mask_row: TensorValue
    masks: TensorValue
    conv: BufferValue | None = None
    ssm: BufferValue | None = None
    carry: BufferValue | None = None
    pages: BufferValue | None = None


PLAN_TENSORS: dict[str, tuple[DType, list[str | int]]] = {
    "tokens": (DType.int32, ["tokens"]),
    "seq_start": (DType.int32, ["batch_plus_1"]),
    "read_slot": (DType.int32, ["batch"]),
    "write_slot": (DType.int32, ["tokens"]),
    "kv_length": (DType.int32, ["batch"]),
    "block_table": (DType.int32, ["batch", "table_width"]),
    "output_rows": (DType.int32, ["outputs"]),
    "sample_real": (DType.float32, ["outputs", 6]),
    "sample_whole": (DType.int32, ["outputs", 4]),
    "edit_start": (DType.int32, ["outputs_plus_1"]),
    "edit_token": (DType.int32, ["edits"]),
    "edit_count": (DType.int32, ["edits"]),
    "edit_bias": (DType.float32, ["edits"]),
    "mask_row": (DType.int32, ["outputs"]),
    "masks": (DType.int32, ["masks", "mask_words"]),
}
"""Plan tensors of a step, dtype and shape, in the order of the graph's inputs."""


def input_types(spec: ModelSpec, dtype: DType, cache: CacheSpec, device: DeviceRef) -> list:
    """Returns the graph's input types: the plan tensors, then slot pools, then page pools."""
    plan = [TensorType(kind, shape, device) for kind, shape in PLAN_TENSORS.values()]
    slots = [
        BufferType(p.dtype, ["slots", *p.row_shape], device) for p in slot_pools(spec, dtype, cache)
    ]
    pages = [BufferType(p.dtype, ["pages", *p.row_shape], device) for p in page_pools(spec, cache)]
    return plan + slots + pages


def bind_inputs(spec: ModelSpec, dtype: DType, cache: CacheSpec, values) -> StepInputs:
    """Names the current graph's inputs, which are in the order of `input_types`."""
    values = list(values)
    plan = {name: values[i].tensor for i, name in enumerate(PLAN_TENSORS)}
    pools = (*slot_pools(spec, dtype, cache), *page_pools(spec, cache))
    buffers = {p.name: v.buffer for p, v in zip(pools, values[len(plan) :], strict=True)}
    assert {f.name for f in fields(StepInputs)} >= plan.keys() | buffers.keys()
    return StepInputs(**plan, **buffers)
