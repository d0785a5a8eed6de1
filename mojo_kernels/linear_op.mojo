"""Registers `coachwhip.linear`: operand checks, then the CPU kernel."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.math import ceildiv

from .linear import COLUMN_STEP, PANEL, linear_columns, per_word
from .ragged import check_equal, for_each_share


def check_panels[
    dtype: DType
](
    op: StaticString,
    name: StaticString,
    w: InputTensor[dtype=dtype, rank=3, ...],
    panels: Int,
    k: Int,
) raises:
    """Checks the shape of matrices in panels.

    Parameters:
        dtype: Type of the matrices.

    Args:
        op: The op.
        name: Of the operand.
        w: The panels.
        panels: How many there should be.
        k: Values per row of the matrices.

    Raises:
        Error: The shape is another one.
    """
    comptime LAST = PANEL * per_word[dtype]()
    var words = ceildiv(k, per_word[dtype]())
    if (
        w.dim_size(0) != panels
        or w.dim_size(1) != words
        or w.dim_size(2) != LAST
        or w.strides()[0] != words * LAST
    ):
        raise Error(
            op,
            ": ",
            name,
            " has the shape [",
            w.dim_size(0),
            ", ",
            w.dim_size(1),
            ", ",
            w.dim_size(2),
            "], expected panels [",
            panels,
            ", ",
            words,
            ", ",
            LAST,
            "]",
        )


@extensibility.register("coachwhip.linear")
struct Linear:
    """Matrix product with a weight; CPU only (on a GPU the graph uses MAX's matmul).
    """

    @staticmethod
    def execute[
        dtype: DType, out_dtype: DType, //, target: StaticString
    ](
        y: OutputTensor[dtype=out_dtype, rank=2, ...],
        x: InputTensor[dtype=dtype, rank=2, ...],
        w: InputTensor[dtype=dtype, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        """Computes `x @ w^T`; see `linear.mojo`.

        Parameters:
            dtype: Type of x and w: float32 or bfloat16.
            out_dtype: Type of y.
            target: "cpu".

        Args:
            y: Output, `[tokens, n]`.
            x: Input rows, `[tokens, k]`.
            w: Panels of the weight `[n, k]`: `[panels, words of k, 64 * values per word]`.
            ctx: Device context.

        Raises:
            When an operand's shape or, on a CPU, an index is out of range; the message names it.
        """
        comptime OP = "coachwhip.linear"
        comptime assert not is_gpu[target](), "coachwhip.linear is a CPU op"
        comptime assert (
            dtype == DType.float32 or dtype == DType.bfloat16
        ), "x must be float32 or bfloat16"
        var rows = x.dim_size(0)
        var k = x.dim_size(1)
        var n = y.dim_size(1)
        if k == 0:
            raise Error(OP, ": x.shape[1] is 0, expected at least 1")
        check_equal(OP, "y.shape[0]", y.dim_size(0), rows)
        check_panels(OP, "w", w, ceildiv(n, PANEL), k)
        check_equal(OP, "x.strides[0]", x.strides()[0], k)
        var yp = y.unsafe_ptr()
        var xp = x.unsafe_ptr()
        var wp = w.unsafe_ptr()
        if rows == 0 or n == 0:
            return

        def work(begin: Int, end: Int) {imm}:
            linear_columns[dtype, out_dtype](yp, n, xp, wp, k, rows, begin, end)

        # A row of x costs little beside the first one, which brings the weight in from memory.
        for_each_share(work, n, COLUMN_STEP, k * (3 + rows) // 4, ctx)
