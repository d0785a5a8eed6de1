"""Wrappers of the ops that move rows between a pool and a tensor: `load_rows`, `store_rows`."""

from __future__ import annotations

from max.dtype import DType
from max.graph import BufferValue, TensorType, TensorValue, ops

from .operands import STATES, check, check_same_dtype


def load_rows(pool: BufferValue, index: TensorValue) -> TensorValue:
    """Gathers rows of a pool, which other ops of the graph may change before or after.

    Args:
        pool: [rows, width], any float type; not changed.
        index: [n] i32; rows to read, -1 gives zeros.

    Returns:
        [n, width], dtype of pool.

    Raises:
        ValueError: A rank or dtype is not as above (when built); a row is out of range (when run
            on a CPU).

    See: mojo_kernels/pool_rows.mojo; tests/reference/pool_rows.py.
    """
    op = "coachwhip.load_rows"
    check(op, "pool", pool, 2, STATES)
    check(op, "index", index, 1, DType.int32)
    return ops.inplace_custom(
        op,
        device=index.device,
        values=[pool, index],
        out_types=[TensorType(pool.dtype, [index.shape[0], pool.shape[1]], index.device)],
    )[0].tensor


def store_rows(pool: BufferValue, values: TensorValue, index: TensorValue) -> None:
    """Stores row i of the values in row `index[i]` of a pool.

    Args:
        pool: [rows, width], any float type; changed in place.
        values: [n, width], dtype of pool.
        index: [n] i32; distinct rows, -1 stores nothing.

    Raises:
        ValueError: A rank or dtype is not as above (when built); a row is out of range (when run
            on a CPU).

    See: mojo_kernels/pool_rows.mojo; tests/reference/pool_rows.py.
    """
    op = "coachwhip.store_rows"
    check(op, "pool", pool, 2, STATES)
    check(op, "values", values, 2, STATES)
    check(op, "index", index, 1, DType.int32)
    check_same_dtype(op, pool=pool, values=values)
    ops.inplace_custom(
        op,
        device=index.device,
        values=[pool, values, index],
        out_types=[TensorType(DType.int32, [0], index.device)],
    )
