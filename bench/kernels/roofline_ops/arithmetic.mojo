"""Arithmetic at full speed: chains of multiply-adds in registers, on every CPU thread."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.algorithm import sync_parallelize
from max.gpu.host import DeviceContext
from max.runtime.asyncrt import parallelism_level
from std.sys import llvm_intrinsic
from std.sys.info import CompilationTarget

comptime LANES = 16
"""Values that one vector holds."""
comptime CHAINS = 12
"""Independent chains: more than latency times units of any CPU met so far."""
comptime MAX_WORKERS = 256
"""Length of the output: each thread leaves one value."""
comptime Acc = SIMD[DType.float32, LANES]
comptime Half = SIMD[DType.bfloat16, 2 * LANES]
comptime HAS_BF16_DOT = CompilationTarget._has_feature["avx512bf16"]()


@extensibility.register("coachwhip_bench.multiply_add")
struct MultiplyAdd:
    """Runs chains of float32 FMAs, or of bfloat16 dot products into float32 sums.

    Where the CPU has no such dot product, bfloat16 runs float32 FMAs: that is its ceiling there.
    """

    @staticmethod
    def execute[
        dtype: DType, //, target: StaticString
    ](
        sums: OutputTensor[dtype=DType.float32, rank=1, ...],
        factors: InputTensor[dtype=dtype, rank=1, ...],
        iterations: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        """Runs `iterations` times 12 multiply-adds on each thread.

        Parameters:
            dtype: Type of the products: float32 or bfloat16.
            target: "cpu".

        Args:
            sums: One sum per thread, `[256]`; the rest are zero.
            factors: What is multiplied, `[64]`; read at run time so that nothing is folded.
            iterations: `[iterations]`.
            ctx: Device context.
        """
        var cpu = ctx.assert_cpu_target()
        var n = Int(iterations.unsafe_ptr()[unsafe_offset=0])
        if factors.dim_size(0) != 4 * LANES:
            raise Error(
                "coachwhip_bench.multiply_add: factors has ",
                factors.dim_size(0),
                " values, expected ",
                4 * LANES,
            )
        var f = factors.unsafe_ptr()
        var out = sums.unsafe_ptr()
        var workers = min(parallelism_level(cpu), MAX_WORKERS)
        for w in range(MAX_WORKERS):
            out[unsafe_offset=w] = 0

        def share(w: Int) {imm}:
            # Chains that start alike would be merged into one.
            var acc = Array[Acc, CHAINS](fill=0)
            comptime for i in range(CHAINS):
                acc[i] = Acc(Float32(i))
            comptime if dtype == DType.bfloat16 and HAS_BF16_DOT:
                var a = rebind[Half](f.unsafe_load[width=2 * LANES](0))
                var b = rebind[Half](f.unsafe_load[width=2 * LANES](2 * LANES))
                for _ in range(n):
                    comptime for i in range(CHAINS):
                        acc[i] = llvm_intrinsic[
                            "llvm.x86.avx512bf16.dpbf16ps.512", Acc
                        ](acc[i], a, b)
            else:
                var a = f.unsafe_load[width=LANES](0).cast[DType.float32]()
                var b = f.unsafe_load[width=LANES](LANES).cast[DType.float32]()
                for _ in range(n):
                    comptime for i in range(CHAINS):
                        acc[i] = acc[i].fma(a, b)
            var sum = Acc(0)
            comptime for i in range(CHAINS):
                sum += acc[i]
            out[unsafe_offset=w] = sum.reduce_add()

        sync_parallelize(share, workers, cpu)
