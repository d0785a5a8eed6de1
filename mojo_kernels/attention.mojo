"""Paged causal grouped-query attention over a ragged batch, CPU kernel.

    out[t] = softmax(scale * q[t] . k[0 .. position(t)]) . v[0 .. position(t)]

Keys are visited in tiles of 64 that are anchored at position 0 of the sequence, with one running
maximum and sum per query row (online softmax), all in float32. A row therefore does the same
arithmetic whatever the number of rows beside it, the chunking of the prompt and the page size:
float32 results are bit-equal. Keys past the row's own position are never read, so pages may hold
anything there.

A page is `[2, num_kv_heads, page_size, head_dim]` per layer: K, then V.

See: Milakov & Gimelshein 2018, arXiv 1805.02867 (online softmax); Kwon et al. 2023,
arXiv 2309.06180 (paging); tests/reference/attention.py.
"""

from std.math import exp
from std.memory import stack_allocation

comptime LANES = 16
"""Values that one vector holds."""
comptime KEY_TILE = 64
"""Keys per softmax tile, anchored at position 0."""
comptime KEY_GROUP = 8
"""Keys looked up at a time; page sizes are multiples of it, so a group lies in one page."""
comptime NEGATIVE = Float32(-3.0e38)
"""Start of the running maximum: finite, so that no inf - inf can arise."""


@always_inline
def row_offset(
    pages: Pointer[mut=False, Int32, ...],
    position: Int,
    page_stride: Int,
    page_size: Int,
    head_dim: Int,
) -> Int:
    """Returns where a position's row lies, in elements from page 0's first row.

    Args:
        pages: Block table row of the sequence.
        position: Token position.
        page_stride: Elements from one page to the next.
        page_size: Tokens per page.
        head_dim: Values per row.

    Returns:
        The offset, in elements.
    """
    var page = Int(pages[unsafe_offset=position // page_size])
    return page * page_stride + position % page_size * head_dim


@always_inline
def attend_row[
    dtype: DType, cache_dtype: DType, head_dim: Int
](
    result: Pointer[mut=True, Scalar[dtype], ...],
    q: Pointer[mut=False, Scalar[dtype], ...],
    keys: Pointer[mut=False, Scalar[cache_dtype], ...],
    values: Pointer[mut=False, Scalar[cache_dtype], ...],
    pages: Pointer[mut=False, Int32, ...],
    page_stride: Int,
    page_size: Int,
    length: Int,
    scale: Float32,
):
    """Attends one query row of one head to the first `length` keys.

    Parameters:
        dtype: Type of q and the output.
        cache_dtype: Type of the cache.
        head_dim: Head size, a multiple of 16.

    Args:
        result: Where the output goes, `[head_dim]`.
        q: Query, `[head_dim]`.
        keys: Page 0's keys of this layer and K/V head, `[page_size, head_dim]`.
        values: Page 0's values of this layer and K/V head, `[page_size, head_dim]`.
        pages: Block table row of the sequence.
        page_stride: Elements from one page to the next.
        page_size: Tokens per page, a multiple of 8.
        length: Number of keys, at least 1: the row's position + 1.
        scale: Factor on q . k.
    """
    comptime F = DType.float32
    comptime Vec = SIMD[F, LANES]
    comptime NV = head_dim // LANES
    var query = Array[Vec, NV](fill=0)
    comptime for i in range(NV):
        query[i] = q.unsafe_load[width=LANES](i * LANES).cast[F]() * scale
    var acc = Array[Vec, NV](fill=0)
    var highest = NEGATIVE
    var total = Float32(0)
    var score = stack_allocation[KEY_TILE, F, alignment=64]()

    for start in range(0, length, KEY_TILE):
        var n = min(KEY_TILE, length - start)
        comptime for i in range(0, KEY_TILE, LANES):
            score.unsafe_store(i, Vec(NEGATIVE))
        for g in range(0, n, KEY_GROUP):
            var row = keys.unsafe_offset(
                row_offset(pages, start + g, page_stride, page_size, head_dim)
            )
            for j in range(g, min(g + KEY_GROUP, n)):
                var dot = Vec(0)
                comptime for i in range(NV):
                    dot = (
                        row.unsafe_load[width=LANES](i * LANES)
                        .cast[F]()
                        .fma(query[i], dot)
                    )
                score[unsafe_offset=j] = dot.reduce_add()
                row = row.unsafe_offset(head_dim)
        var top = Vec(NEGATIVE)
        comptime for i in range(0, KEY_TILE, LANES):
            top = max(top, score.unsafe_load[width=LANES](i))
        var newest = max(highest, top.reduce_max())
        var shrink = exp(Vec(highest - newest))
        highest = newest
        var sum = Vec(0)
        comptime for i in range(0, KEY_TILE, LANES):
            var p = exp(score.unsafe_load[width=LANES](i) - newest)
            score.unsafe_store(i, p)
            sum += p
        total = total * shrink[0] + sum.reduce_add()
        comptime for i in range(NV):
            acc[i] = acc[i] * shrink
        for g in range(0, n, KEY_GROUP):
            var row = values.unsafe_offset(
                row_offset(pages, start + g, page_stride, page_size, head_dim)
            )
            for j in range(g, min(g + KEY_GROUP, n)):
                var p = Vec(score[unsafe_offset=j])
                comptime for i in range(NV):
                    acc[i] = (
                        row.unsafe_load[width=LANES](i * LANES)
                        .cast[F]()
                        .fma(p, acc[i])
                    )
                row = row.unsafe_offset(head_dim)
    comptime for i in range(NV):
        result.unsafe_store(i * LANES, (acc[i] / total).cast[dtype]())
