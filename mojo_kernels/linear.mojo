"""Matrix product with a weight, CPU kernel: y[m, n] = sum over k of x[m, k] * w[n, k].

Both operands are contiguous along k, so an output is one chain of FMAs: 16 float32 partial sums
(lane l takes every 16th k), then one horizontal sum. That chain is the same for every M, N, block
shape and thread count, which makes float32 rows bit-equal whatever rides along; blocking only
decides which chains run together.

Rows of bfloat16 go through `vdpbf16ps` (pairs of products into float32 sums) where the CPU has it.

Blocking: a thread owns a contiguous run of weight rows. Small M streams each weight row once.
Otherwise groups of 24 weight rows meet 64 rows of x in slices of k, so that the slice of x stays in
the L1 cache, the slices of w in L2, and 24 accumulators per micro-kernel in registers.

See: Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication".
"""

from std.memory import stack_allocation
from std.sys import PrefetchOptions, llvm_intrinsic, prefetch
from std.sys.info import CompilationTarget

comptime LANES = 16
"""Partial sums of one output."""
comptime ROWS = 4
"""Rows of x per micro-kernel."""
comptime COLUMNS = 6
"""Weight rows per micro-kernel: 4 x 6 accumulators, 4 vectors of x and 1 of w fill 32 registers."""
comptime PANELS = 4
"""Micro-kernels of weight rows that meet one slice of x."""
comptime BLOCK_ROWS = 64
"""Rows of x that a group of weight rows meets before the next group."""
comptime SLICE_BYTES = 2048
"""Bytes of k per slice: 4 rows of x and 6 of w, 20 KB, fit the L1 cache."""

comptime Acc = SIMD[DType.float32, LANES]
"""Partial sums of one output."""
comptime HAS_BF16_DOT = CompilationTarget._has_feature["avx512bf16"]()
"""Whether the CPU multiplies pairs of bfloat16 into float32 sums."""


def step_of[dtype: DType]() -> Int:
    """Returns how many k one vector step takes.

    Parameters:
        dtype: Type of x and w.

    Returns:
        16 for float32, 32 for bfloat16.
    """
    return 2 * LANES if dtype == DType.bfloat16 else LANES


@always_inline
def multiply_add[
    dtype: DType, width: Int
](acc: Acc, x: SIMD[dtype, width], w: SIMD[dtype, width]) -> Acc:
    """Adds the products of one vector step to the 16 partial sums.

    Parameters:
        dtype: Type of x and w.
        width: 16 for float32, 32 for bfloat16.

    Args:
        acc: The partial sums.
        x: Values of x.
        w: Values of w.

    Returns:
        The new partial sums.
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
def accumulate[
    dtype: DType, rows: Int, columns: Int, fetch_next: Bool = False
](
    mut acc: Array[Acc, rows * columns],
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
    begin: Int,
    end: Int,
):
    """Runs a micro-kernel over whole vector steps of `[begin, end)`.

    Parameters:
        dtype: Type of x and w.
        rows: Rows of x.
        columns: Rows of w.
        fetch_next: Whether the next `columns` rows of w are brought into the L1 cache meanwhile.

    Args:
        acc: Partial sums, `[rows, columns]`.
        x: First row of x, stride `k`.
        w: First row of w, stride `k`.
        k: Values per row.
        begin: First k, a multiple of the vector step.
        end: First k past the slice; what is left of a step is not taken.
    """
    comptime STEP = step_of[dtype]()
    for i in range(begin, end - STEP + 1, STEP):
        var xv = Array[SIMD[dtype, STEP], rows](fill=0)
        comptime for m in range(rows):
            xv[m] = x.unsafe_load[width=STEP](m * k + i)
        comptime for n in range(columns):
            var wv = w.unsafe_load[width=STEP](n * k + i)
            comptime if fetch_next:
                # Past the last row this may name memory that is not there: a hint never faults.
                prefetch[
                    PrefetchOptions().for_read().high_locality().to_data_cache()
                ](w.unsafe_offset((columns + n) * k + i))
            comptime for m in range(rows):
                acc[m * columns + n] = multiply_add(
                    acc[m * columns + n], xv[m], wv
                )


@always_inline
def sum_lanes(vectors: Array[Acc, LANES]) -> Acc:
    """Sums the lanes of 16 vectors: lane l and l + 8, then l and l + 4, l + 2, l + 1.

    Vectors share their steps, so a sum takes 3 instructions instead of 8; the order of additions
    within a sum is that of `SIMD.reduce_add`.

    Args:
        vectors: The vectors.

    Returns:
        The sum of vector i in lane i.
    """
    var v = vectors.copy()
    comptime for i in range(8):
        v[i] = v[2 * i].shuffle[
            0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
        ](v[2 * i + 1]) + v[2 * i].shuffle[
            8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
        ](
            v[2 * i + 1]
        )
    comptime for i in range(4):
        v[i] = v[2 * i].shuffle[
            0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
        ](v[2 * i + 1]) + v[2 * i].shuffle[
            4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
        ](
            v[2 * i + 1]
        )
    comptime for i in range(2):
        v[i] = v[2 * i].shuffle[
            0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29
        ](v[2 * i + 1]) + v[2 * i].shuffle[
            2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31
        ](
            v[2 * i + 1]
        )
    return v[0].shuffle[
        0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
    ](v[1]) + v[0].shuffle[
        1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
    ](
        v[1]
    )


@always_inline
def finish[
    dtype: DType, out_dtype: DType, rows: Int, columns: Int
](
    acc: Array[Acc, rows * columns],
    y: Pointer[mut=True, Scalar[out_dtype], ...],
    n: Int,
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
):
    """Sums the partial sums, adds what is left of k, and stores the outputs.

    Parameters:
        dtype: Type of x and w.
        out_dtype: Type of y.
        rows: Rows of x.
        columns: Rows of w, at most 8.

    Args:
        acc: Partial sums, `[rows, columns]`.
        y: First output, `[rows, columns]` with stride `n`.
        n: Values per row of y.
        x: First row of x, stride `k`.
        w: First row of w, stride `k`.
        k: Values per row.
    """
    comptime F = DType.float32
    comptime STEP = step_of[dtype]()
    comptime HALF = LANES // 2
    var whole = k // STEP * STEP
    # Two rows at a time, each in one half of the lanes, so that a row is stored in a few pieces.
    comptime for pair in range(0, rows, 2):
        var vectors = Array[Acc, LANES](fill=0)
        comptime for r in range(pair, min(pair + 2, rows)):
            comptime for c in range(columns):
                vectors[(r - pair) * HALF + c] = acc[r * columns + c]
        var sums = sum_lanes(vectors)
        if whole < k:
            comptime for r in range(pair, min(pair + 2, rows)):
                comptime for c in range(columns):
                    comptime at = (r - pair) * HALF + c
                    for i in range(whole, k):
                        sums[at] = (
                            x[unsafe_offset=r * k + i]
                            .cast[F]()
                            .fma(w[unsafe_offset=c * k + i].cast[F](), sums[at])
                        )
        comptime for r in range(pair, min(pair + 2, rows)):
            var out = sums.slice[HALF, offset=(r - pair) * HALF]().cast[
                out_dtype
            ]()
            var yr = y.unsafe_offset(r * n)
            comptime if columns >= 4:
                yr.unsafe_store(out.slice[4]())
            comptime if columns >= 6:
                yr.unsafe_store(4, out.slice[2, offset=4]())
            comptime for c in range(
                6 if columns >= 6 else 4 if columns >= 4 else 0, columns
            ):
                yr[unsafe_offset=c] = out[c]


@always_inline
def tile[
    dtype: DType,
    out_dtype: DType,
    rows: Int,
    columns: Int,
    fetch_next: Bool = False,
](
    y: Pointer[mut=True, Scalar[out_dtype], ...],
    n: Int,
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
):
    """Computes `rows x columns` outputs over all of k.

    Parameters:
        dtype: Type of x and w.
        out_dtype: Type of y.
        rows: Rows of x.
        columns: Rows of w.
        fetch_next: Whether the next `columns` rows of w are brought into the L1 cache meanwhile.

    Args:
        y: First output, stride `n`.
        n: Values per row of y.
        x: First row of x, stride `k`.
        w: First row of w, stride `k`.
        k: Values per row.
    """
    var acc = Array[Acc, rows * columns](fill=0)
    accumulate[dtype, rows, columns, fetch_next](acc, x, w, k, 0, k)
    finish[dtype, out_dtype, rows, columns](acc, y, n, x, w, k)


@always_inline
def tiles[
    dtype: DType, out_dtype: DType, columns: Int
](
    y: Pointer[mut=True, Scalar[out_dtype], ...],
    n: Int,
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
    rows: Int,
):
    """Computes `columns` outputs of every row, 4 rows at a time.

    The first rows bring the weights into the L1 cache, and those of the next tiles behind them:
    weights come from memory at the speed of memory while the sums are computed.

    Parameters:
        dtype: Type of x and w.
        out_dtype: Type of y.
        columns: Rows of w.

    Args:
        y: First output, stride `n`.
        n: Values per row of y.
        x: First row of x, stride `k`.
        w: First row of w, stride `k`.
        k: Values per row.
        rows: Rows of x.
    """
    if rows >= ROWS:
        tile[dtype, out_dtype, ROWS, columns, True](y, n, x, w, k)
        for r in range(ROWS, rows - ROWS + 1, ROWS):
            tile[dtype, out_dtype, ROWS, columns](
                y.unsafe_offset(r * n), n, x.unsafe_offset(r * k), w, k
            )
    var done = rows // ROWS * ROWS
    comptime for left in range(1, ROWS):
        if rows - done == left:
            tile[dtype, out_dtype, left, columns, True](
                y.unsafe_offset(done * n), n, x.unsafe_offset(done * k), w, k
            )


def strip[
    dtype: DType, out_dtype: DType
](
    y: Pointer[mut=True, Scalar[out_dtype], ...],
    n: Int,
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
    rows: Int,
    columns: Int,
):
    """Computes some rows of outputs for a run of weight rows, reading each of them once.

    Parameters:
        dtype: Type of x and w.
        out_dtype: Type of y.

    Args:
        y: First output, stride `n`.
        n: Values per row of y.
        x: First row of x, stride `k`.
        w: First weight row, stride `k`.
        k: Values per row.
        rows: Rows of x, few enough to stay in the L2 cache.
        columns: Number of weight rows.
    """
    var c = 0
    while c + COLUMNS <= columns:
        tiles[dtype, out_dtype, COLUMNS](
            y.unsafe_offset(c), n, x, w.unsafe_offset(c * k), k, rows
        )
        c += COLUMNS
    while c < columns:
        tiles[dtype, out_dtype, 1](
            y.unsafe_offset(c), n, x, w.unsafe_offset(c * k), k, rows
        )
        c += 1


def block_group[
    dtype: DType, out_dtype: DType
](
    y: Pointer[mut=True, Scalar[out_dtype], ...],
    n: Int,
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    k: Int,
    rows: Int,
):
    """Computes up to 64 rows x 24 weight rows, slice by slice of k.

    Parameters:
        dtype: Type of x and w.
        out_dtype: Type of y.

    Args:
        y: First output, stride `n`.
        n: Values per row of y.
        x: First row of x, stride `k`.
        w: First of 24 weight rows, stride `k`.
        k: Values per row.
        rows: Rows of x, a multiple of 4 up to 64.
    """
    comptime F = DType.float32
    comptime TILE = ROWS * COLUMNS
    comptime slice = SLICE_BYTES // (2 if dtype == DType.bfloat16 else 4)
    var sums = stack_allocation[
        BLOCK_ROWS // ROWS * PANELS * TILE * LANES, F, alignment=64
    ]()
    for begin in range(0, k, slice):
        var end = min(begin + slice, k)
        for r in range(0, rows, ROWS):
            var xr = x.unsafe_offset(r * k)
            comptime for p in range(PANELS):
                var wp = w.unsafe_offset(p * COLUMNS * k)
                var kept = sums.unsafe_offset(
                    (r // ROWS * PANELS + p) * TILE * LANES
                )
                var acc = Array[Acc, TILE](fill=0)
                if begin > 0:
                    comptime for i in range(TILE):
                        acc[i] = kept.unsafe_load[width=LANES](i * LANES)
                accumulate[dtype, ROWS, COLUMNS](acc, xr, wp, k, begin, end)
                if end < k:
                    comptime for i in range(TILE):
                        kept.unsafe_store(i * LANES, acc[i])
                else:
                    finish[dtype, out_dtype, ROWS, COLUMNS](
                        acc,
                        y.unsafe_offset(r * n + p * COLUMNS),
                        n,
                        xr,
                        wp,
                        k,
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
    columns: Int,
):
    """Computes all rows of outputs for one thread's run of weight rows.

    Parameters:
        dtype: Type of x and w: float32 or bfloat16.
        out_dtype: Type of y.

    Args:
        y: First output of the run, stride `n`.
        n: Values per row of y.
        x: First row of x, stride `k`.
        w: First weight row of the run, stride `k`.
        k: Values per row.
        rows: Rows of x.
        columns: Number of weight rows of the run.
    """
    comptime GROUP = PANELS * COLUMNS
    var full = columns // GROUP * GROUP if rows > 2 * ROWS else 0
    for r0 in range(0, rows, BLOCK_ROWS):
        var count = min(BLOCK_ROWS, rows - r0)
        var whole = count // ROWS * ROWS if full > 0 else 0
        for c in range(0, full, GROUP):
            block_group[dtype, out_dtype](
                y.unsafe_offset(r0 * n + c),
                n,
                x.unsafe_offset(r0 * k),
                w.unsafe_offset(c * k),
                k,
                whole,
            )
        if whole > 0 and full < columns:
            strip[dtype, out_dtype](
                y.unsafe_offset(r0 * n + full),
                n,
                x.unsafe_offset(r0 * k),
                w.unsafe_offset(full * k),
                k,
                whole,
                columns - full,
            )
        if whole < count:
            strip[dtype, out_dtype](
                y.unsafe_offset((r0 + whole) * n),
                n,
                x.unsafe_offset((r0 + whole) * k),
                w,
                k,
                count - whole,
                columns,
            )
