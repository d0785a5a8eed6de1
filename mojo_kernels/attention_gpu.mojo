"""Paged causal grouped-query attention, GPU kernels: store the new keys and values, then attend.

Same contract and page layout as `attention.mojo`. A block attends one query row of one head: its
warps take every fourth key, lanes share head_dim, and the warps' online-softmax states are merged
through shared memory at the end. A row's arithmetic depends on its position alone.
"""

from max.gpu import WARP_SIZE, barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.memory import AddressSpace
from max.gpu.primitives import warp
from std.math import exp
from std.memory import stack_allocation

comptime WARPS = 4
"""Warps of a block."""


@always_inline
def sequence_of(
    row: Int, seq_start: Pointer[mut=False, Int32, ...], batch: Int
) -> Int:
    """Returns the sequence that a row belongs to.

    Args:
        row: Row of the ragged batch.
        seq_start: First row of each sequence, `[batch + 1]`.
        batch: Number of sequences.

    Returns:
        The sequence's index; never one without rows.
    """
    var lo = 0
    var hi = batch
    while hi - lo > 1:
        var mid = (lo + hi) // 2
        if Int(seq_start[unsafe_offset=mid]) <= row:
            lo = mid
        else:
            hi = mid
    return lo


def store_kv_gpu[
    dtype: DType, cache_dtype: DType
](
    pages: Pointer[Scalar[cache_dtype], MutAnyOrigin],
    k: Pointer[Scalar[dtype], ImmutAnyOrigin],
    v: Pointer[Scalar[dtype], ImmutAnyOrigin],
    seq_start: Pointer[Int32, ImmutAnyOrigin],
    kv_length: Pointer[Int32, ImmutAnyOrigin],
    block_table: Pointer[Int32, ImmutAnyOrigin],
    batch: Int32,
    table_width: Int32,
    kv_heads: Int32,
    head_dim: Int32,
    page_size: Int32,
    page_stride: Int64,
):
    """Stores the keys and values of one row; grid (tokens), block WARPS warps.

    Parameters:
        dtype: Type of the rows.
        cache_dtype: Type of the cache.

    Args:
        pages: Page 0 of this layer, `[2, kv_heads, page_size, head_dim]`.
        k: New keys, `[tokens, kv_heads, head_dim]`.
        v: New values, `[tokens, kv_heads, head_dim]`.
        seq_start: First row of each sequence, `[batch + 1]`.
        kv_length: Keys each sequence had before this step, `[batch]`.
        block_table: Pages of each sequence, `[batch, table_width]`.
        batch: Number of sequences.
        table_width: Columns of the block table.
        kv_heads: Number of K/V heads.
        head_dim: Head size.
        page_size: Tokens per page.
        page_stride: Elements between pages.
    """
    var row = Int(block_idx.x)
    var s = sequence_of(row, seq_start, Int(batch))
    var position = (
        Int(kv_length[unsafe_offset=s]) + row - Int(seq_start[unsafe_offset=s])
    )
    var size = Int(page_size)
    var dim = Int(head_dim)
    var page = Int(
        block_table[unsafe_offset=s * Int(table_width) + position // size]
    )
    var home = page * Int(page_stride) + (position % size) * dim
    var half = Int(kv_heads) * size * dim
    for i in range(Int(thread_idx.x), Int(kv_heads) * dim, WARPS * WARP_SIZE):
        var at = home + (i // dim) * size * dim + i % dim
        var from_ = row * Int(kv_heads) * dim + i
        pages[unsafe_offset=at] = k[unsafe_offset=from_].cast[cache_dtype]()
        pages[unsafe_offset=half + at] = v[unsafe_offset=from_].cast[
            cache_dtype
        ]()


def attention_gpu[
    dtype: DType, cache_dtype: DType, head_dim: Int
](
    result: Pointer[Scalar[dtype], MutAnyOrigin],
    q: Pointer[Scalar[dtype], ImmutAnyOrigin],
    pages: Pointer[Scalar[cache_dtype], MutAnyOrigin],
    seq_start: Pointer[Int32, ImmutAnyOrigin],
    kv_length: Pointer[Int32, ImmutAnyOrigin],
    block_table: Pointer[Int32, ImmutAnyOrigin],
    batch: Int32,
    table_width: Int32,
    heads: Int32,
    kv_heads: Int32,
    page_size: Int32,
    page_stride: Int64,
    scale: Float32,
):
    """Attends one query row of one head; grid (tokens, heads), block WARPS warps.

    Parameters:
        dtype: Type of q and the output.
        cache_dtype: Type of the cache.
        head_dim: Head size, a multiple of 16.

    Args:
        result: Where the output goes, `[tokens, heads, head_dim]`.
        q: Queries, `[tokens, heads, head_dim]`.
        pages: Page 0 of this layer, `[2, kv_heads, page_size, head_dim]`.
        seq_start: First row of each sequence, `[batch + 1]`.
        kv_length: Keys each sequence had before this step, `[batch]`.
        block_table: Pages of each sequence, `[batch, table_width]`.
        batch: Number of sequences.
        table_width: Columns of the block table.
        heads: Number of query heads.
        kv_heads: Number of K/V heads.
        page_size: Tokens per page.
        page_stride: Elements between pages.
        scale: Factor on q . k.
    """
    comptime F = DType.float32
    comptime V = (head_dim + WARP_SIZE - 1) // WARP_SIZE  # values of one lane
    var h = Int(block_idx.y)
    var row = Int(block_idx.x)
    var lane = Int(lane_id())
    var s = sequence_of(row, seq_start, Int(batch))
    var length = (
        Int(kv_length[unsafe_offset=s])
        + row
        - Int(seq_start[unsafe_offset=s])
        + 1
    )
    var size = Int(page_size)
    var head_base = (h // (Int(heads) // Int(kv_heads))) * size * head_dim
    var half = Int(kv_heads) * size * head_dim
    var q_at = (row * Int(heads) + h) * head_dim
    var query = Array[Float32, V](fill=0)
    comptime for i in range(V):
        if i * WARP_SIZE + lane < head_dim:
            query[i] = (
                q[unsafe_offset=q_at + i * WARP_SIZE + lane].cast[F]() * scale
            )
    var acc = Array[Float32, V](fill=0)
    var highest = Float32(-3.0e38)
    var total = Float32(0)
    for j in range(Int(warp_id()), length, WARPS):
        var page = Int(
            block_table[unsafe_offset=s * Int(table_width) + j // size]
        )
        var at = page * Int(page_stride) + head_base + (j % size) * head_dim
        var dot = Float32(0)
        comptime for i in range(V):
            if i * WARP_SIZE + lane < head_dim:
                dot = (
                    pages[unsafe_offset=at + i * WARP_SIZE + lane]
                    .cast[F]()
                    .fma(query[i], dot)
                )
        dot = warp.sum(dot)
        var newest = max(highest, dot)
        var shrink = exp(highest - newest)
        var p = exp(dot - newest)
        highest = newest
        total = total * shrink + p
        comptime for i in range(V):
            if i * WARP_SIZE + lane < head_dim:
                acc[i] = (
                    pages[unsafe_offset=half + at + i * WARP_SIZE + lane]
                    .cast[F]()
                    .fma(p, acc[i] * shrink)
                )
    var tops = stack_allocation[WARPS, F, address_space=AddressSpace.SHARED]()
    var sums = stack_allocation[WARPS, F, address_space=AddressSpace.SHARED]()
    var rows = stack_allocation[
        WARPS * head_dim, F, address_space=AddressSpace.SHARED
    ]()
    var w = Int(warp_id())
    tops[unsafe_offset=w] = highest
    sums[unsafe_offset=w] = total
    comptime for i in range(V):
        if i * WARP_SIZE + lane < head_dim:
            rows[unsafe_offset=w * head_dim + i * WARP_SIZE + lane] = acc[i]
    barrier()
    var top = tops[unsafe_offset=0]
    comptime for k in range(1, WARPS):
        top = max(top, tops[unsafe_offset=k])
    var sum = Float32(0)
    comptime for k in range(WARPS):
        sum += sums[unsafe_offset=k] * exp(tops[unsafe_offset=k] - top)
    for i in range(Int(thread_idx.x), head_dim, WARPS * WARP_SIZE):
        var value = Float32(0)
        comptime for k in range(WARPS):
            value += rows[unsafe_offset=k * head_dim + i] * exp(
                tops[unsafe_offset=k] - top
            )
        result[unsafe_offset=q_at + i] = (value / sum).cast[dtype]()
