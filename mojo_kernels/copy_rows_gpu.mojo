"""Copies whole rows of a pool to other rows of it, GPU kernel: up to 64 blocks per copy."""

from max.gpu import block_dim, block_idx, grid_dim, thread_idx


def copy_rows_gpu[
    dtype: DType
](
    pool: Pointer[Scalar[dtype], MutAnyOrigin],
    source: Pointer[Int32, ImmutAnyOrigin],
    target: Pointer[Int32, ImmutAnyOrigin],
    row_stride: Int64,
):
    """Copies row `source[i]` to row `target[i]`; grid (copies, parts of a row).

    Parameters:
        dtype: Type of the pool.

    Args:
        pool: The pool, `[rows, row_stride]`.
        source: Rows to read, `[copies]`.
        target: Rows to write, `[copies]`.
        row_stride: Values per row.
    """
    var i = Int(block_idx.x)
    var stride = Int(row_stride)
    var src = Int(source[unsafe_offset=i]) * stride
    var dst = Int(target[unsafe_offset=i]) * stride
    var first = Int(block_idx.y) * Int(block_dim.x) + Int(thread_idx.x)
    for at in range(first, stride, Int(grid_dim.y) * Int(block_dim.x)):
        pool[unsafe_offset=dst + at] = pool[unsafe_offset=src + at]
