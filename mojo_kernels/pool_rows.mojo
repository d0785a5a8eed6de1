"""Rows of a pool to and from a tensor, CPU kernels: one row per slot, such as a hidden state.

See: tests/reference/pool_rows.py.
"""

from std.memory import unsafe_memcpy


def load_row[
    dtype: DType
](
    row: Pointer[Scalar[dtype], MutAnyOrigin],
    pool: Pointer[Scalar[dtype], MutAnyOrigin],
    index: Int,
    width: Int,
):
    """Copies row `index` of the pool, or zeros.

    Parameters:
        dtype: Type of the pool.

    Args:
        row: Where it goes, `[width]`.
        pool: The pool, `[rows, width]`.
        index: Row to read; -1 gives zeros.
        width: Values per row.
    """
    if index < 0:
        for i in range(width):
            row[unsafe_offset=i] = 0
        return
    unsafe_memcpy(dest=row, src=pool.unsafe_offset(index * width), count=width)


def store_row[
    dtype: DType
](
    pool: Pointer[Scalar[dtype], MutAnyOrigin],
    row: Pointer[Scalar[dtype], ImmutAnyOrigin],
    index: Int,
    width: Int,
):
    """Copies a row to row `index` of the pool, or nowhere.

    Parameters:
        dtype: Type of the pool.

    Args:
        pool: The pool, `[rows, width]`.
        row: The row, `[width]`.
        index: Row to write; -1 stores nothing.
        width: Values per row.
    """
    if index < 0:
        return
    unsafe_memcpy(dest=pool.unsafe_offset(index * width), src=row, count=width)
