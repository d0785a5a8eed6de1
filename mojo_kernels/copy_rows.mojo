"""Copies whole rows of a pool (slots or pages) to other rows of it, CPU kernel.

See: tests/reference/copy_rows.py.
"""

from std.memory import unsafe_memcpy


def copy_row[
    dtype: DType
](
    pool: Pointer[Scalar[dtype], MutAnyOrigin],
    source: Int,
    target: Int,
    begin: Int,
    end: Int,
    row_stride: Int,
):
    """Copies values `[begin, end)` of row `source` to row `target`.

    Parameters:
        dtype: Type of the pool.

    Args:
        pool: The pool, `[rows, row_stride]`.
        source: Row to read.
        target: Row to write; equal to `source` is a no-op.
        begin: First value of the row.
        end: First value past the copied ones.
        row_stride: Values per row.
    """
    if source == target or begin >= end:
        return
    unsafe_memcpy(
        dest=pool.unsafe_offset(target * row_stride + begin),
        src=pool.unsafe_offset(source * row_stride + begin),
        count=end - begin,
    )
