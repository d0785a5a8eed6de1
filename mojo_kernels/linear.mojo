"""Matrix product with a weight, CPU kernel: y[m, n] = sum over k of x[m, k] * w[n, k].

A weight lies in panels of 64 of its rows: `[panel, k, 64]`. A vector of x's single value meets
vectors of 16 weight rows, so each output is a sum in one lane and needs no sum over lanes, which
for short k costs as much as the products. An output is one chain of FMAs for every 512 words of k,
and the chains are added in their order. That is the same for every M, N, block shape and thread
count, which makes float32 rows bit-equal whatever rides along; blocking only decides which chains
run together.

The unit of k is a word of four bytes: one float32, or two bfloat16, which go through `vdpbf16ps`
(pairs of products into float32 sums) where the CPU has it.

Blocking: a thread owns a contiguous run of weight rows. Up to 72 rows of x meet a slice of a panel
(512 words, 128 KB) that stays in the L2 cache, up to 6 at a time. A panel is read from its
beginning to its end, as memory likes it, and fetched ahead.

See: Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication";
coachwhip/checkpoint/to_panels.py.
"""

from std.math import ceildiv
from std.memory import bitcast, stack_allocation
from std.sys import PrefetchOptions, llvm_intrinsic, prefetch
from std.sys.info import CompilationTarget

comptime LANES = 16
"""Outputs of one vector of sums, and words of one vector."""
comptime PANEL = 64
"""Weight rows of one panel."""
comptime COLUMN_STEP = 32
"""Weight rows of a run are a multiple of it: half a panel."""
comptime ROWS = 6
"""Rows of x per micro-kernel: 6 x 4 sums, 4 vectors of w and 1 of x fit 32 registers."""
comptime BLOCK_ROWS = 72
"""Rows of x that meet a slice of a panel before the next slice."""
comptime SLICE = 512
"""Words of k of one chain of sums."""
comptime FETCH_WORDS = 2048
"""How far ahead of its use a panel is fetched: 8 KB."""

comptime Acc = SIMD[DType.float32, LANES]
"""Sums of 16 outputs."""
comptime HAS_BF16_DOT = CompilationTarget._has_feature["avx512bf16"]()
"""Whether the CPU multiplies pairs of bfloat16 into float32 sums."""


def per_word[dtype: DType]() -> Int:
    """Returns how many values one word holds.

    Parameters:
        dtype: Type of x and w.

    Returns:
        1 for float32, 2 for bfloat16.
    """
    return 2 if dtype == DType.bfloat16 else 1


@always_inline
def multiply_add[
    dtype: DType, width: Int
](acc: Acc, x: SIMD[dtype, width], w: SIMD[dtype, width]) -> Acc:
    """Adds the products of 16 words to 16 sums.

    Parameters:
        dtype: Type of x and w.
        width: 16 for float32, 32 for bfloat16.

    Args:
        acc: The sums.
        x: Words of x.
        w: Words of w.

    Returns:
        The new sums.
    """
    comptime if dtype == DType.float32:
        return rebind[Acc](x.cast[DType.float32]()).fma(
            rebind[Acc](w.cast[DType.float32]()), acc
        )
    elif HAS_BF16_DOT:
        return llvm_intrinsic["llvm.x86.avx512bf16.dpbf16ps.512", Acc](
            acc,
            rebind[SIMD[DType.bfloat16, 32]](x),
            rebind[SIMD[DType.bfloat16, 32]](w),
        )
    else:
        var xe = x.deinterleave()
        var we = w.deinterleave()
        var even = rebind[Acc](xe[0].cast[DType.float32]()).fma(
            rebind[Acc](we[0].cast[DType.float32]()), acc
        )
        return rebind[Acc](xe[1].cast[DType.float32]()).fma(
            rebind[Acc](we[1].cast[DType.float32]()), even
        )


@always_inline
def spread[
    dtype: DType, each: Int
](word: SIMD[dtype, each]) -> SIMD[dtype, each * LANES]:
    """Returns one word in every lane.

    Parameters:
        dtype: Type of x.
        each: Values of a word.

    Args:
        word: The word.

    Returns:
        16 words.
    """
    comptime if each == 1:
        return SIMD[dtype, each * LANES](word[0])
    else:
        return bitcast[dtype, each * LANES](
            SIMD[DType.uint32, LANES](bitcast[DType.uint32, 1](word)[0])
        )


@always_inline
def accumulate[
    dtype: DType, rows: Int, vectors: Int, fetch: Bool
](
    mut acc: Array[Acc, rows * vectors],
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
    begin: Int,
    end: Int,
):
    """Adds the products of the words `[begin, end)`.

    Parameters:
        dtype: Type of x and w.
        rows: Rows of x.
        vectors: Vectors of weight rows.
        fetch: Whether the panel is fetched ahead.

    Args:
        acc: Sums, `[rows, vectors]`.
        x: First row of x, stride `k`.
        w: First word of the weight rows in their panel.
        k: Values per row.
        begin: First word.
        end: First word past the slice.
    """
    comptime EACH = per_word[dtype]()
    comptime WIDTH = EACH * LANES
    for i in range(begin, min(end, k // EACH)):
        var wi = w.unsafe_offset(i * PANEL * EACH)
        var wv = Array[SIMD[dtype, WIDTH], vectors](fill=0)
        comptime for v in range(vectors):
            wv[v] = wi.unsafe_load[width=WIDTH](v * WIDTH)
            comptime if fetch:
                # Past the last panel there may be no memory: a hint never faults.
                prefetch[
                    PrefetchOptions().for_read().high_locality().to_data_cache()
                ](wi.unsafe_offset((v * LANES + FETCH_WORDS) * EACH))
        comptime for m in range(rows):
            var xv = spread(x.unsafe_load[width=EACH](m * k + i * EACH))
            comptime for v in range(vectors):
                acc[m * vectors + v] = multiply_add(
                    acc[m * vectors + v], xv, wv[v]
                )
    comptime if EACH == 2:
        if end * EACH > k:  # half a word is left
            comptime for m in range(rows):
                var word = SIMD[dtype, EACH](0)
                word[0] = x[unsafe_offset=m * k + k - 1]
                var xv = spread(word)
                comptime for v in range(vectors):
                    acc[m * vectors + v] = multiply_add(
                        acc[m * vectors + v],
                        xv,
                        w.unsafe_load[width=WIDTH](
                            (k // EACH * PANEL + v * LANES) * EACH
                        ),
                    )


@always_inline
def store[
    out_dtype: DType
](y: Pointer[mut=True, Scalar[out_dtype], ...], sums: Acc, columns: Int):
    """Stores up to 16 outputs of a row.

    Parameters:
        out_dtype: Type of y.

    Args:
        y: The first output.
        sums: The outputs.
        columns: How many of them to store, if not all.
    """
    var out = sums.cast[out_dtype]()
    if columns >= LANES:
        y.unsafe_store(out)
    else:
        for i in range(columns):
            y[unsafe_offset=i] = out[i]


@always_inline
def tile[
    dtype: DType, out_dtype: DType, rows: Int, vectors: Int, fetch: Bool
](
    y: Pointer[mut=True, Scalar[out_dtype], ...],
    n: Int,
    kept: Pointer[mut=True, Float32, ...],
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
    begin: Int,
    end: Int,
    columns: Int,
):
    """Computes the slice `[begin, end)` of some outputs, and stores them if it is the last.

    Parameters:
        dtype: Type of x and w.
        out_dtype: Type of y.
        rows: Rows of x.
        vectors: Vectors of weight rows.
        fetch: Whether the panel is fetched ahead.

    Args:
        y: First output, stride `n`.
        n: Values per row of y.
        kept: Sums of the slices before, `[rows, PANEL]`.
        x: First row of x, stride `k`.
        w: First word of the weight rows in their panel.
        k: Values per row.
        begin: First word of the slice.
        end: First word past it.
        columns: Weight rows from the first one on; what the vectors do not hold is left out.
    """
    var acc = Array[Acc, rows * vectors](fill=0)
    accumulate[dtype, rows, vectors, fetch](acc, x, w, k, begin, end)
    comptime for m in range(rows):
        comptime for v in range(vectors):
            comptime at = m * PANEL + v * LANES
            var sums = acc[m * vectors + v]
            if begin > 0:
                sums = kept.unsafe_load[width=LANES](at) + sums
            if end * per_word[dtype]() < k:
                kept.unsafe_store(at, sums)
            else:
                store(
                    y.unsafe_offset(m * n + v * LANES),
                    sums,
                    columns - v * LANES,
                )


@always_inline
def block[
    dtype: DType, out_dtype: DType, vectors: Int
](
    y: Pointer[mut=True, Scalar[out_dtype], ...],
    n: Int,
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
    rows: Int,
    columns: Int,
):
    """Computes up to 72 rows of outputs for a panel or half of one, slice by slice of k.

    Parameters:
        dtype: Type of x and w.
        out_dtype: Type of y.
        vectors: Vectors of weight rows.

    Args:
        y: First output, stride `n`.
        n: Values per row of y.
        x: First row of x, stride `k`.
        w: First word of the weight rows in their panel.
        k: Values per row.
        rows: Rows of x.
        columns: Weight rows from the first one on; what the vectors do not hold is left out.
    """
    var kept = stack_allocation[
        BLOCK_ROWS * PANEL, DType.float32, alignment=64
    ]()
    var words = ceildiv(k, per_word[dtype]())
    var tiles = ceildiv(rows, ROWS)
    for begin in range(0, words, SLICE):
        var end = min(begin + SLICE, words)
        for t in range(tiles):
            var r = rows * t // tiles
            var count = rows * (t + 1) // tiles - r
            comptime for c in range(1, ROWS + 1):
                if count == c:
                    if t == 0:  # the first rows bring the slice into the caches
                        tile[dtype, out_dtype, c, vectors, True](
                            y, n, kept, x, w, k, begin, end, columns
                        )
                    elif c >= ROWS // 2:  # further tiles have no fewer
                        tile[dtype, out_dtype, c, vectors, False](
                            y.unsafe_offset(r * n),
                            n,
                            kept.unsafe_offset(r * PANEL),
                            x.unsafe_offset(r * k),
                            w,
                            k,
                            begin,
                            end,
                            columns,
                        )


def linear_columns[
    dtype: DType, out_dtype: DType
](
    y: Pointer[mut=True, Scalar[out_dtype], ...],
    n: Int,
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
    rows: Int,
    begin: Int,
    end: Int,
):
    """Computes all rows of outputs for one thread's run of weight rows.

    Parameters:
        dtype: Type of x and w: float32 or bfloat16.
        out_dtype: Type of y.

    Args:
        y: First output of the matrix, stride `n`.
        n: Values per row of y.
        x: First row of x, stride `k`.
        w: Panels of the matrix.
        k: Values per row.
        rows: Rows of x.
        begin: First weight row, a multiple of 32.
        end: First weight row past the run, a multiple of 32 or `n`.
    """
    comptime EACH = per_word[dtype]()
    var words = ceildiv(k, EACH)
    for r in range(0, rows, BLOCK_ROWS):
        var count = min(BLOCK_ROWS, rows - r)
        var yr = y.unsafe_offset(r * n)
        var xr = x.unsafe_offset(r * k)
        var c = begin
        while c < end:
            var wc = w.unsafe_offset(
                (c // PANEL * words * PANEL + c % PANEL) * EACH
            )
            if c % PANEL == 0 and end - c > COLUMN_STEP:
                block[dtype, out_dtype, PANEL // LANES](
                    yr.unsafe_offset(c), n, xr, wc, k, count, end - c
                )
                c += PANEL
            else:
                block[dtype, out_dtype, COLUMN_STEP // LANES](
                    yr.unsafe_offset(c), n, xr, wc, k, count, end - c
                )
                c += COLUMN_STEP
