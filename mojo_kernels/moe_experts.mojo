"""The routed experts of a MoE layer, CPU kernel.

    out[t] = sum over j of weight[t, j] * down[e] . relu(up[e] . x[t])^2,   e = expert[t, j]

Pairs (token, choice) are sorted by expert, so that each expert's weights are read once per step and
experts nobody chose are never touched. Every product is `linear.mojo`'s chain of sums and the
choices of a token are added in their own order, so a row's bits do not depend on the batch.

See: tests/reference/moe.py.
"""

from std.math import ceildiv

from .linear import COLUMN_STEP, PANEL, linear_columns, per_word


def sort_by_expert(
    order: Pointer[mut=True, Int32, ...],
    first: Pointer[mut=True, Int32, ...],
    chosen: Pointer[mut=False, Int32, ...],
    pairs: Int,
    experts: Int,
):
    """Sorts the pairs (token, choice) by expert, keeping their order within one.

    Args:
        order: Pairs in sorted order, `[pairs]`.
        first: First sorted position of each expert, `[experts + 1]`.
        chosen: Expert of each pair, `[pairs]`.
        pairs: Number of pairs.
        experts: Number of experts.
    """
    for e in range(experts + 1):
        first[unsafe_offset=e] = 0
    for i in range(pairs):
        var e = Int(chosen[unsafe_offset=i])
        first[unsafe_offset=e + 1] = first[unsafe_offset=e + 1] + 1
    for e in range(experts):
        first[unsafe_offset=e + 1] = (
            first[unsafe_offset=e + 1] + first[unsafe_offset=e]
        )
    # `first[e]` runs ahead while filling, and is set back by one place afterwards.
    for i in range(pairs):
        var e = Int(chosen[unsafe_offset=i])
        order[unsafe_offset=Int(first[unsafe_offset=e])] = Int32(i)
        first[unsafe_offset=e] = first[unsafe_offset=e] + 1
    for e in range(experts, 0, -1):
        first[unsafe_offset=e] = first[unsafe_offset=e - 1]
    first[unsafe_offset=0] = 0


@always_inline
def block_cost(rows: Int) -> Int:
    """Returns the cost of a block of weight rows that meets `rows` rows.

    Reading the weights costs as much as computing about three rows.

    Args:
        rows: Rows of the expert.

    Returns:
        The cost; 0 for an expert nobody chose.
    """
    return rows + 3 if rows > 0 else 0


@always_inline
def relu_squared[
    dtype: DType
](
    h: Pointer[mut=True, Scalar[dtype], ...],
    stride: Int,
    rows: Int,
    columns: Int,
):
    """Replaces values by `max(value, 0)^2`.

    Parameters:
        dtype: Type of the values.

    Args:
        h: The values, `[rows, columns]` with `stride`.
        stride: Elements between rows.
        rows: Number of rows.
        columns: Number of columns.
    """
    for r in range(rows):
        for c in range(columns):
            var v = max(h[unsafe_offset=r * stride + c], 0)
            h[unsafe_offset=r * stride + c] = v * v


def expert_columns[
    dtype: DType, out_dtype: DType, squared: Bool
](
    y: Pointer[mut=True, Scalar[out_dtype], ...],
    x: Pointer[mut=False, Scalar[dtype], ...],
    w: Pointer[mut=False, Scalar[dtype], ...],
    first: Pointer[mut=False, Int32, ...],
    experts: Int,
    n: Int,
    k: Int,
    begin: Int,
    end: Int,
):
    """Computes one thread's share of all experts' products with their sorted rows.

    Blocks of 32 weight rows, expert after expert, are laid on a line as long as their cost; a
    thread takes the blocks that begin in its stretch of it.

    Parameters:
        dtype: Type of x and w.
        out_dtype: Type of y.
        squared: Whether the results go through relu, squared.

    Args:
        y: Outputs in sorted order, `[pairs, n]`.
        x: Inputs in sorted order, `[pairs, k]`.
        w: Panels of every expert's matrix `[n, k]`, one expert after another.
        first: First sorted position of each expert, `[experts + 1]`.
        experts: Number of experts.
        n: Values per output row.
        k: Values per input row.
        begin: Start of the stretch, in cost.
        end: End of the stretch, in cost.
    """
    comptime EACH = per_word[dtype]()
    var matrix = ceildiv(n, PANEL) * PANEL * ceildiv(k, EACH) * EACH
    var blocks = ceildiv(n, COLUMN_STEP)
    var at = 0
    for e in range(experts):
        var row = Int(first[unsafe_offset=e])
        var rows = Int(first[unsafe_offset=e + 1]) - row
        var cost = block_cost(rows)
        if cost == 0:
            continue
        var next = at + blocks * cost
        if next > begin and at < end:
            # blocks whose start lies in [begin, end)
            var lo = max(0, (begin - at + cost - 1) // cost)
            var hi = min(blocks, (end - at + cost - 1) // cost)
            var c0 = lo * COLUMN_STEP
            var c1 = min(hi * COLUMN_STEP, n)
            if c1 > c0:
                linear_columns[dtype, out_dtype](
                    y.unsafe_offset(row * n),
                    n,
                    x.unsafe_offset(row * k),
                    w.unsafe_offset(e * matrix),
                    k,
                    rows,
                    c0,
                    c1,
                )
                comptime if squared:
                    relu_squared[out_dtype](
                        y.unsafe_offset(row * n + c0), n, rows, c1 - c0
                    )
        at = next


def total_cost(
    first: Pointer[mut=False, Int32, ...], experts: Int, n: Int
) -> Int:
    """Returns the length of the line that `expert_columns` shares out.

    Args:
        first: First sorted position of each expert, `[experts + 1]`.
        experts: Number of experts.
        n: Values per output row.

    Returns:
        The sum of the costs of all blocks.
    """
    var blocks = ceildiv(n, COLUMN_STEP)
    var total = 0
    for e in range(experts):
        total += blocks * block_cost(
            Int(first[unsafe_offset=e + 1] - first[unsafe_offset=e])
        )
    return total
