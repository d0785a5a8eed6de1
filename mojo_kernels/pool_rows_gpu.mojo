"""Rows of a pool to and from a tensor, GPU kernels: up to 64 blocks per row."""

from max.gpu import block_dim, block_idx, grid_dim, thread_idx


def load_rows_gpu[
    dtype: DType
](
    rows: Pointer[Scalar[dtype], MutAnyOrigin],
    pool: Pointer[Scalar[dtype], MutAnyOrigin],
    index: Pointer[Int32, ImmutAnyOrigin],
    width_: Int64,
):
    """Copies row `index[i]` of the pool to row i; grid (rows, parts of a row).

    Parameters:
        dtype: Type of the pool.

    Args:
        rows: Where they go, `[n, width]`.
        pool: The pool, `[rows, width]`.
        index: Rows to read, -1 gives zeros, `[n]`.
        width_: Values per row.
    """
    var i = Int(block_idx.x)
    var width = Int(width_)
    var source = Int(index[unsafe_offset=i])
    var first = Int(block_idx.y) * Int(block_dim.x) + Int(thread_idx.x)
    for at in range(first, width, Int(grid_dim.y) * Int(block_dim.x)):
        var value = Scalar[dtype](0)
        if source >= 0:
            value = pool[unsafe_offset=source * width + at]
        rows[unsafe_offset=i * width + at] = value


def store_rows_gpu[
    dtype: DType
](
    pool: Pointer[Scalar[dtype], MutAnyOrigin],
    rows: Pointer[Scalar[dtype], ImmutAnyOrigin],
    index: Pointer[Int32, ImmutAnyOrigin],
    width_: Int64,
):
    """Copies row i to row `index[i]` of the pool; grid (rows, parts of a row).

    Parameters:
        dtype: Type of the pool.

    Args:
        pool: The pool, `[rows, width]`.
        rows: The rows, `[n, width]`.
        index: Rows to write, -1 stores nothing, `[n]`.
        width_: Values per row.
    """
    var i = Int(block_idx.x)
    var width = Int(width_)
    var target = Int(index[unsafe_offset=i])
    if target < 0:
        return
    var first = Int(block_idx.y) * Int(block_dim.x) + Int(thread_idx.x)
    for at in range(first, width, Int(grid_dim.y) * Int(block_dim.x)):
        pool[unsafe_offset=target * width + at] = rows[
            unsafe_offset=i * width + at
        ]
