"""Ragged batches: checking what the host planned, and sharing the work among CPU threads.

A ragged batch holds the rows of all sequences one after another; `seq_start[s]` is the first row
of sequence `s` and `seq_start[batch]` the number of rows.

The pool's threads flush denormals to zero, the calling thread does not. Work flushes them on all
of them: else a value's bits would depend on the amount of work beside it.
"""

from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from max.runtime.asyncrt import parallelism_level
from std.math import ceildiv
from std.utils.numerics import FlushDenormals

from .team import MOST_SHARES, share_with_team

comptime SERIAL_BELOW = 1 << 15
"""Work, in state values, under which one thread is faster: some microseconds."""
comptime SERIAL_BELOW_WITHOUT_TEAM = 1 << 19
"""The same where the process has no team: a parallel region of the runtime costs tens to hundreds
of microseconds, whatever it does."""
comptime SHARES_PER_THREAD = 4
"""Shares of large work for each thread, so that one that comes late still finds some."""

comptime ROWS_PER_SEQUENCE = 2
"""Fixed cost of a sequence (loading and storing its state), in rows."""


def check_seq_start(
    op: StaticString,
    seq_start: Pointer[mut=False, Int32, ...],
    batch: Int,
    tokens: Int,
) raises:
    """Raises unless `seq_start` runs from 0 to `tokens` without going back.

    Args:
        op: Name of the op, for the message.
        seq_start: First row of each sequence, `[batch + 1]`.
        batch: Number of sequences.
        tokens: Number of rows.

    Raises:
        When an entry is out of order; the message names it and its value.
    """
    if batch < 0:
        raise Error(op, ": seq_start is empty, it needs batch + 1 entries")
    if Int(seq_start[unsafe_offset=0]) != 0:
        raise Error(
            op,
            ": seq_start[0] is ",
            seq_start[unsafe_offset=0],
            ", it must be 0",
        )
    for s in range(batch):
        if seq_start[unsafe_offset=s + 1] < seq_start[unsafe_offset=s]:
            raise Error(
                op,
                ": seq_start[",
                s + 1,
                "] is ",
                seq_start[unsafe_offset=s + 1],
                ", below seq_start[",
                s,
                "] = ",
                seq_start[unsafe_offset=s],
            )
    if Int(seq_start[unsafe_offset=batch]) != tokens:
        raise Error(
            op,
            ": seq_start[",
            batch,
            "] is ",
            seq_start[unsafe_offset=batch],
            ", but there are ",
            tokens,
            " rows",
        )


def check_indices(
    op: StaticString,
    name: StaticString,
    indices: Pointer[mut=False, Int32, ...],
    count: Int,
    lowest: Int,
    limit: Int,
) raises:
    """Raises unless every index lies in `[lowest, limit)`.

    Args:
        op: Name of the op, for the message.
        name: Name of the index tensor, for the message.
        indices: The indices, `[count]`.
        count: How many there are.
        lowest: Smallest legal value; -1 where "none" is legal.
        limit: First value past the legal ones.

    Raises:
        When an index is out of range; the message names it and its value.
    """
    for i in range(count):
        var v = Int(indices[unsafe_offset=i])
        if v < lowest or v >= limit:
            raise Error(
                op,
                ": ",
                name,
                "[",
                i,
                "] is ",
                v,
                ", outside [",
                lowest,
                ", ",
                limit,
                ")",
            )


def check_equal(
    op: StaticString, what: StaticString, got: Int, want: Int
) raises:
    """Raises unless a tensor's extent is the expected one.

    Args:
        op: Name of the op, for the message.
        what: The extent, such as "weight.shape[0]".
        got: Its value.
        want: The value that the other operands ask for.

    Raises:
        When they differ; the message gives both.
    """
    if got != want:
        raise Error(op, ": ", what, " is ", got, ", expected ", want)


def first_item(
    target: Int,
    units: Int,
    batch: Int,
    seq_start: Pointer[mut=False, Int32, ...],
) -> Int:
    """Returns the first item whose preceding work reaches `target`.

    Item `s * units + u` is unit `u` of sequence `s`; it costs the sequence's rows plus
    `ROWS_PER_SEQUENCE`.

    Args:
        target: Work to leave behind, in rows.
        units: Number of units.
        batch: Number of sequences.
        seq_start: First row of each sequence, `[batch + 1]`.

    Returns:
        The item's index, `units * batch` when there is none.
    """
    for s in range(batch):
        var before = (
            Int(seq_start[unsafe_offset=s]) + s * ROWS_PER_SEQUENCE
        ) * units
        var each = (
            Int(seq_start[unsafe_offset=s + 1] - seq_start[unsafe_offset=s])
            + ROWS_PER_SEQUENCE
        )
        if before + each * units > target:
            return s * units + ceildiv(max(target - before, 0), each)
    return units * batch


def share_count(cost: Int, ctx: DeviceContext) raises -> Int:
    """Returns how many shares to cut work into: as many as threads can help with it.

    Args:
        cost: The work, in state values.
        ctx: The device context of the op, a CPU's.

    Returns:
        The number of shares, 1 where further threads do not pay.

    Raises:
        Error: The context is not a CPU's.
    """
    if cost < SERIAL_BELOW:
        return 1
    var threads = parallelism_level(ctx.assert_cpu_target())
    if threads == 1:
        return 1
    if cost < SERIAL_BELOW_WITHOUT_TEAM:
        return min(threads, cost // (SERIAL_BELOW // 2))
    return min(threads * SHARES_PER_THREAD, MOST_SHARES)


def run_shares[
    Work: def(Int) -> None
](work: Work, shares: Int, cost: Int, ctx: DeviceContext) raises:
    """Calls `work(i)` for `i` in `[0, shares)`, on as many threads as pay.

    Parameters:
        Work: Type of the function.

    Args:
        work: What to do for a share. Must not raise.
        shares: Number of shares, of `share_count` or fewer.
        cost: Cost of all of them in state values.
        ctx: The device context of the op, a CPU's.

    Raises:
        Error: The context is not a CPU's, or the threads cannot be started.
    """

    def flushing(i: Int) {imm}:
        with FlushDenormals():
            work(i)

    if shares > 1:
        if share_with_team(flushing, shares):
            return
        if cost >= SERIAL_BELOW_WITHOUT_TEAM:
            sync_parallelize(flushing, shares, ctx.assert_cpu_target())
            return
    with FlushDenormals():
        for i in range(shares):
            work(i)


def for_each_unit_and_sequence[
    Work: def(Int, Int) -> None
](
    work: Work,
    units: Int,
    batch: Int,
    seq_start: Pointer[mut=False, Int32, ...],
    values_per_row: Int,
    ctx: DeviceContext,
) raises:
    """Calls `work(unit, sequence)` for each pair, on as many threads as pay.

    A share is one contiguous run of items, cut where the rows balance, so that one long
    prefill beside many decode rows is still shared evenly. The units of a sequence follow one
    another, as their states do in memory: decode streams whole slots.

    Parameters:
        Work: Type of the function.

    Args:
        work: What to do for a unit (a head, a block of channels) of a sequence. Must not raise.
        units: Number of units.
        batch: Number of sequences.
        seq_start: First row of each sequence, `[batch + 1]`.
        values_per_row: State values that one row of one unit touches; decides whether threads pay.
        ctx: The device context of the op, a CPU's.

    Raises:
        Error: The context is not a CPU's.
    """
    var tokens = Int(seq_start[unsafe_offset=batch])
    var cost = tokens * units * values_per_row
    var shares = share_count(cost, ctx)
    var total = (tokens + batch * ROWS_PER_SEQUENCE) * units

    def share(i: Int) {imm}:
        var lo = first_item(total * i // shares, units, batch, seq_start)
        var hi = first_item(total * (i + 1) // shares, units, batch, seq_start)
        for item in range(lo, hi):
            work(item % units, item // units)

    run_shares(share, shares, cost, ctx)


def for_each_share[
    Work: def(Int, Int) -> None
](
    work: Work,
    count: Int,
    multiple: Int,
    values_per_item: Int,
    ctx: DeviceContext,
) raises:
    """Calls `work(begin, end)` with contiguous shares of `[0, count)`, on as many threads as pay.

    Parameters:
        Work: Type of `work`.

    Args:
        work: What to do for the items `[begin, end)`. Must not raise.
        count: Number of items.
        multiple: Shares begin at multiples of it.
        values_per_item: Cost of an item in state values; decides whether threads pay.
        ctx: The device context of the op, a CPU's.

    Raises:
        When the threads cannot be started.
    """
    var parts = ceildiv(count, multiple)
    var cost = count * values_per_item
    var shares = min(share_count(cost, ctx), parts)

    def share(i: Int) {imm}:
        work(
            parts * i // shares * multiple,
            min(parts * (i + 1) // shares * multiple, count),
        )

    run_shares(share, shares, cost, ctx)


def for_each_stretch[
    Work: def(Int, Int) -> None
](work: Work, length: Int, values_per_unit: Int, ctx: DeviceContext) raises:
    """Calls `work(begin, end)` with equal stretches of `[0, length)`, on as many threads as pay.

    Parameters:
        Work: Type of the function.

    Args:
        work: What to do for a stretch of cost. Must not raise.
        length: Cost of all.
        values_per_unit: State values that a unit of cost stands for; decides whether threads pay.
        ctx: The device context of the op, a CPU's.

    Raises:
        Error: The context is not a CPU's.
    """
    for_each_share(work, length, 1, values_per_unit, ctx)


def for_each_range[
    Work: def(Int) -> None
](work: Work, count: Int, values_per_item: Int, ctx: DeviceContext) raises:
    """Calls `work(i)` for `i` in `[0, count)`, in contiguous runs, on as many threads as pay.

    Parameters:
        Work: Type of `work`.

    Args:
        work: What to do for an item. Must not raise.
        count: Number of items.
        values_per_item: Cost of an item in state values; decides whether threads pay.
        ctx: The device context of the op, a CPU's.

    Raises:
        When the threads cannot be started.
    """

    def share(begin: Int, end: Int) {imm}:
        for i in range(begin, end):
            work(i)

    for_each_share(share, count, 1, values_per_item, ctx)
