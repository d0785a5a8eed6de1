"""Memory traffic at full speed: read, read and write in place, copy; each on every CPU thread.

Each op takes `window = [first value, values]` of one large buffer, so that calls can walk through
more memory than any cache holds. A thread owns one contiguous share, as the kernels' threads do.
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from max.runtime.asyncrt import parallelism_level
from std.memory import unsafe_memcpy

comptime LANES = 16
"""Values that one vector holds."""
comptime UNROLL = 8
"""Vectors in flight; shares are multiples of `LANES * UNROLL` values."""
comptime STEP = LANES * UNROLL
comptime MAX_WORKERS = 256
"""Length of the outputs: each thread leaves one value."""
comptime Vec = SIMD[DType.float32, LANES]


def check_window(op: StaticString, begin: Int, count: Int, limit: Int) raises:
    """Raises unless the window lies in the buffer and holds whole steps.

    Args:
        op: Name of the op, for the message.
        begin: First value.
        count: Number of values.
        limit: Values of the buffer.
    """
    if begin < 0 or count < 0 or begin + count > limit or count % STEP:
        raise Error(
            op,
            ": window is [",
            begin,
            ", ",
            count,
            "], expected a multiple of ",
            STEP,
            " values within ",
            limit,
        )


@extensibility.register("coachwhip_bench.read")
struct Read:
    """Sums a window: memory is read once and nothing is written."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        sums: OutputTensor[dtype=DType.float32, rank=1, ...],
        data: MutableInputTensor[dtype=DType.float32, rank=1, ...],
        window: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        """Sums each thread's share of the window.

        Parameters:
            target: "cpu".

        Args:
            sums: One sum per thread, `[256]`; the rest are zero.
            data: The buffer.
            window: `[first value, values]`.
            ctx: Device context.
        """
        var cpu = ctx.assert_cpu_target()
        var begin = Int(window.unsafe_ptr()[unsafe_offset=0])
        var count = Int(window.unsafe_ptr()[unsafe_offset=1])
        check_window("coachwhip_bench.read", begin, count, data.dim_size(0))
        var p = data.unsafe_ptr().unsafe_offset(begin)
        var out = sums.unsafe_ptr()
        var steps = count // STEP
        var workers = min(parallelism_level(cpu), MAX_WORKERS)
        for w in range(MAX_WORKERS):
            out[unsafe_offset=w] = 0

        def share(w: Int) {imm}:
            var acc = Array[Vec, UNROLL](fill=0)
            for s in range(steps * w // workers, steps * (w + 1) // workers):
                comptime for u in range(UNROLL):
                    acc[u] += p.unsafe_load[width=LANES](s * STEP + u * LANES)
            var sum = Vec(0)
            comptime for u in range(UNROLL):
                sum += acc[u]
            out[unsafe_offset=w] = sum.reduce_add()

        sync_parallelize(share, workers, cpu)


@extensibility.register("coachwhip_bench.update")
struct Update:
    """Computes x/2 + 1/4 in place: memory is read once and written once, at the same addresses.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        none: OutputTensor[dtype=DType.int32, rank=1, ...],
        data: MutableInputTensor[dtype=DType.float32, rank=1, ...],
        window: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        """Updates the window.

        Parameters:
            target: "cpu".

        Args:
            none: Not written; gives the op a result, `[0]`.
            data: The buffer, changed in place.
            window: `[first value, values]`; no values make a call that does nothing.
            ctx: Device context.
        """
        var cpu = ctx.assert_cpu_target()
        var begin = Int(window.unsafe_ptr()[unsafe_offset=0])
        var count = Int(window.unsafe_ptr()[unsafe_offset=1])
        check_window("coachwhip_bench.update", begin, count, data.dim_size(0))
        if count == 0:
            return
        var p = data.unsafe_ptr().unsafe_offset(begin)
        var steps = count // STEP
        var workers = parallelism_level(cpu)

        def share(w: Int) {imm}:
            for s in range(steps * w // workers, steps * (w + 1) // workers):
                comptime for u in range(UNROLL):
                    var at = s * STEP + u * LANES
                    var x = p.unsafe_load[width=LANES](at)
                    p.unsafe_store(at, x.fma(Vec(0.5), Vec(0.25)))

        sync_parallelize(share, workers, cpu)


@extensibility.register("coachwhip_bench.copy")
struct Copy:
    """Copies a window of the buffer's first half to the same place of its second half.
    """

    @staticmethod
    def execute[
        target: StaticString
    ](
        none: OutputTensor[dtype=DType.int32, rank=1, ...],
        data: MutableInputTensor[dtype=DType.float32, rank=1, ...],
        window: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        """Copies the window.

        Parameters:
            target: "cpu".

        Args:
            none: Not written; gives the op a result, `[0]`.
            data: The buffer, changed in place.
            window: `[first value, values]`, within the first half.
            ctx: Device context.
        """
        var cpu = ctx.assert_cpu_target()
        var begin = Int(window.unsafe_ptr()[unsafe_offset=0])
        var count = Int(window.unsafe_ptr()[unsafe_offset=1])
        var half = data.dim_size(0) // 2
        check_window("coachwhip_bench.copy", begin, count, half)
        var p = data.unsafe_ptr().unsafe_offset(begin)
        var steps = count // STEP
        var workers = parallelism_level(cpu)

        def share(w: Int) {imm}:
            var lo = steps * w // workers * STEP
            var hi = steps * (w + 1) // workers * STEP
            unsafe_memcpy(
                dest=p.unsafe_offset(half + lo),
                src=p.unsafe_offset(lo),
                count=hi - lo,
            )

        sync_parallelize(share, workers, cpu)
