"""Registers `coachwhip.load_rows` and `coachwhip.store_rows`: operand checks, then the kernels."""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.math import ceildiv

from .pool_rows import load_row, store_row
from .pool_rows_gpu import load_rows_gpu, store_rows_gpu
from .ragged import check_equal, check_indices

comptime BLOCK = 256
"""Threads of a GPU block."""
comptime MOST_PARTS = 64
"""Most GPU blocks that share a row."""


@extensibility.register("coachwhip.load_rows")
struct LoadRows:
    """Gathers rows of a pool."""

    @staticmethod
    def execute[
        dtype: DType, //, target: StaticString
    ](
        rows: OutputTensor[dtype=dtype, rank=2, ...],
        pool: MutableInputTensor[dtype=dtype, rank=2, ...],
        index: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        """Copies row `index[i]` of the pool to row i of the output.

        Parameters:
            dtype: Type of the pool.
            target: "cpu" or "gpu".

        Args:
            rows: Output, `[n, width]`.
            pool: The pool, `[rows, width]`.
            index: Rows to read, -1 gives zeros, `[n]`.
            ctx: Device context.

        Raises:
            When an operand's shape or, on a CPU, an index is out of range; the message names it.
        """
        comptime OP = "coachwhip.load_rows"
        var count = index.dim_size(0)
        var width = pool.dim_size(1)
        check_equal(OP, "rows.shape[0]", rows.dim_size(0), count)
        check_equal(OP, "rows.shape[1]", rows.dim_size(1), width)
        var rp = rows.unsafe_ptr()
        var pp = pool.unsafe_ptr()
        var ip = index.unsafe_ptr()
        if count == 0 or width == 0:
            return

        comptime if is_gpu[target]():
            ctx.enqueue_function[load_rows_gpu[dtype]](
                rp,
                pp,
                ip,
                Int64(width),
                grid_dim=(count, min(ceildiv(width, BLOCK), MOST_PARTS)),
                block_dim=BLOCK,
            )
        else:
            check_indices(OP, "index", ip, count, -1, pool.dim_size(0))
            for i in range(count):
                load_row[dtype](
                    rp.unsafe_offset(i * width),
                    pp,
                    Int(ip[unsafe_offset=i]),
                    width,
                )


@extensibility.register("coachwhip.store_rows")
struct StoreRows:
    """Scatters rows into a pool."""

    @staticmethod
    def execute[
        dtype: DType, //, target: StaticString
    ](
        stored: OutputTensor[dtype=DType.int32, rank=1, ...],
        pool: MutableInputTensor[dtype=dtype, rank=2, ...],
        values: InputTensor[dtype=dtype, rank=2, ...],
        index: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        """Copies row i of the values to row `index[i]` of the pool.

        Parameters:
            dtype: Type of the pool.
            target: "cpu" or "gpu".

        Args:
            stored: Not written; gives the op a result that orders it in the graph, `[0]`.
            pool: The pool, `[rows, width]`, changed in place.
            values: The rows, `[n, width]`.
            index: Rows to write, distinct, -1 stores nothing, `[n]`.
            ctx: Device context.

        Raises:
            When an operand's shape or, on a CPU, an index is out of range; the message names it.
        """
        comptime OP = "coachwhip.store_rows"
        var count = index.dim_size(0)
        var width = pool.dim_size(1)
        check_equal(OP, "values.shape[0]", values.dim_size(0), count)
        check_equal(OP, "values.shape[1]", values.dim_size(1), width)
        if count == 0 or width == 0:
            return
        check_equal(OP, "values.strides[0]", values.strides()[0], width)
        var pp = pool.unsafe_ptr()
        var vp = values.unsafe_ptr()
        var ip = index.unsafe_ptr()

        comptime if is_gpu[target]():
            ctx.enqueue_function[store_rows_gpu[dtype]](
                pp,
                vp,
                ip,
                Int64(width),
                grid_dim=(count, min(ceildiv(width, BLOCK), MOST_PARTS)),
                block_dim=BLOCK,
            )
        else:
            check_indices(OP, "index", ip, count, -1, pool.dim_size(0))
            for i in range(count):
                store_row[dtype](
                    pp,
                    vp.unsafe_offset(i * width),
                    Int(ip[unsafe_offset=i]),
                    width,
                )
