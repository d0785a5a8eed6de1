"""Registers the ops of a mixture of experts: operand checks, then the CPU or the GPU kernel."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.math import ceildiv
from std.memory import unsafe_memcpy

from .linear import PANEL
from .linear_op import check_panels
from .moe_experts import expert_columns, sort_by_expert, total_cost
from .moe_experts_gpu import WARPS as EXPERT_WARPS
from .moe_experts_gpu import experts_down_gpu, experts_up_gpu
from .moe_route import MAX_EXPERTS, MAX_GROUPS, route_token
from .moe_route_gpu import moe_route_gpu
from .ragged import (
    check_equal,
    check_indices,
    for_each_range,
    for_each_stretch,
)


@extensibility.register("coachwhip.moe_route")
struct MoeRoute:
    """Choice and weights of the experts of each token."""

    @staticmethod
    def execute[
        groups: Int,
        kept_groups: Int,
        normalize: Bool,
        target: StaticString,
    ](
        chosen: OutputTensor[dtype=DType.int32, rank=2, ...],
        weights: OutputTensor[dtype=DType.float32, rank=2, ...],
        logits: InputTensor[dtype=DType.float32, rank=2, ...],
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        scale: Float32,
        ctx: DeviceContext,
    ) raises:
        """Routes every token; see `moe_route.mojo`.

        Parameters:
            groups: Groups of experts.
            kept_groups: Groups that a token may choose from.
            normalize: Whether a token's weights are divided by their sum.
            target: "cpu" or "gpu".

        Args:
            chosen: Experts, best first, `[tokens, count]`.
            weights: Their weights, `[tokens, count]`.
            logits: Router outputs, `[tokens, experts]`.
            bias: Bias of the choice, `[experts]`.
            scale: Factor on the weights.
            ctx: Device context.

        Raises:
            Error: A shape does not fit.
        """
        comptime OP = "coachwhip.moe_route"
        var tokens = logits.dim_size(0)
        var experts = logits.dim_size(1)
        var count = chosen.dim_size(1)
        check_equal(OP, "chosen.shape[0]", chosen.dim_size(0), tokens)
        check_equal(OP, "weights.shape[0]", weights.dim_size(0), tokens)
        check_equal(OP, "weights.shape[1]", weights.dim_size(1), count)
        check_equal(OP, "bias.shape[0]", bias.dim_size(0), experts)
        check_equal(OP, "logits.strides[0]", logits.strides()[0], experts)
        check_equal(OP, "experts % groups", experts % groups, 0)
        comptime assert (
            1 <= kept_groups <= groups <= MAX_GROUPS
        ), "groups must be 1 to 64, and kept_groups 1 to groups"
        if experts > MAX_EXPERTS:
            raise Error(
                OP, ": ", experts, " experts, at most ", MAX_EXPERTS, " can run"
            )
        if count < 1 or count > experts // groups * kept_groups:
            raise Error(
                OP,
                ": ",
                count,
                " experts per token, but only ",
                experts // groups * kept_groups,
                " can be chosen from",
            )
        var cp = chosen.unsafe_ptr()
        var wp = weights.unsafe_ptr()
        var lp = logits.unsafe_ptr()
        var bp = bias.unsafe_ptr()
        if tokens == 0:
            return

        comptime if is_gpu[target]():
            ctx.enqueue_function[moe_route_gpu[normalize]](
                cp,
                wp,
                lp,
                bp,
                Int32(experts),
                Int32(count),
                Int32(groups),
                Int32(kept_groups),
                scale,
                grid_dim=tokens,
                block_dim=32,
            )
        else:

            def work(t: Int) {imm}:
                route_token(
                    cp.unsafe_offset(t * count),
                    wp.unsafe_offset(t * count),
                    lp.unsafe_offset(t * experts),
                    bp,
                    experts,
                    count,
                    groups,
                    kept_groups,
                    normalize,
                    scale,
                )

            # A choice costs a sigmoid, an expert a look at every choice, 16 at a time.
            for_each_range(work, tokens, experts * (16 + count) // 16, ctx)


@extensibility.register("coachwhip.moe_experts")
struct MoeExperts:
    """The routed experts, summed with their weights."""

    @staticmethod
    def execute[
        dtype: DType, //, target: StaticString
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        hidden: OutputTensor[dtype=dtype, rank=2, ...],
        rows: OutputTensor[dtype=dtype, rank=2, ...],
        sums: OutputTensor[dtype=DType.float32, rank=2, ...],
        places: OutputTensor[dtype=DType.int32, rank=1, ...],
        x: InputTensor[dtype=dtype, rank=2, ...],
        chosen: InputTensor[dtype=DType.int32, rank=2, ...],
        weights: InputTensor[dtype=DType.float32, rank=2, ...],
        up: InputTensor[dtype=dtype, rank=3, ...],
        down: InputTensor[dtype=dtype, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        """Runs the chosen experts of every token; see `moe_experts.mojo`.

        Parameters:
            dtype: Type of rows and weights: float32 or bfloat16.
            target: "cpu" or "gpu".

        Args:
            result: Output, `[tokens, width]`.
            hidden: Work space, `[tokens * count, inner]`.
            rows: Work space of the CPU, `[tokens * count, width]`.
            sums: Work space of the CPU, `[tokens * count, width]`.
            places: Work space of the CPU, `[2 * tokens * count + experts + 1]`.
            x: Rows, `[tokens, width]`.
            chosen: Experts of each token, `[tokens, count]`.
            weights: Their weights, `[tokens, count]`.
            up: Weights, `[experts, inner, width]`; on a CPU the panels of each.
            down: Weights, `[experts, width, inner]`; on a CPU the panels of each.
            ctx: Device context.

        Raises:
            Error: A shape does not fit, or an expert does not exist (CPU).
        """
        comptime OP = "coachwhip.moe_experts"
        var tokens = x.dim_size(0)
        var width = x.dim_size(1)
        var count = chosen.dim_size(1)
        var inner = hidden.dim_size(1)
        var pairs = tokens * count
        check_equal(OP, "result.shape[0]", result.dim_size(0), tokens)
        check_equal(OP, "result.shape[1]", result.dim_size(1), width)
        check_equal(OP, "hidden.shape[0]", hidden.dim_size(0), pairs)
        check_equal(OP, "chosen.shape[0]", chosen.dim_size(0), tokens)
        check_equal(OP, "weights.shape[0]", weights.dim_size(0), tokens)
        check_equal(OP, "weights.shape[1]", weights.dim_size(1), count)
        check_equal(OP, "x.strides[0]", x.strides()[0], width)
        var result_p = result.unsafe_ptr()
        var hidden_p = hidden.unsafe_ptr()
        var xp = x.unsafe_ptr()
        var cp = chosen.unsafe_ptr()
        var wp = weights.unsafe_ptr()
        var up_p = up.unsafe_ptr()
        var down_p = down.unsafe_ptr()
        if pairs == 0:
            return

        comptime if is_gpu[target]():
            check_equal(OP, "up.shape[1]", up.dim_size(1), inner)
            check_equal(OP, "up.shape[2]", up.dim_size(2), width)
            check_equal(OP, "down.shape[0]", down.dim_size(0), up.dim_size(0))
            check_equal(OP, "down.shape[1]", down.dim_size(1), width)
            check_equal(OP, "down.shape[2]", down.dim_size(2), inner)
            ctx.enqueue_function[experts_up_gpu[dtype]](
                hidden_p,
                xp,
                cp,
                up_p,
                Int32(count),
                Int32(width),
                Int32(inner),
                grid_dim=(pairs, ceildiv(inner, EXPERT_WARPS)),
                block_dim=EXPERT_WARPS * 32,
            )
            ctx.enqueue_function[experts_down_gpu[dtype]](
                result_p,
                hidden_p,
                cp,
                wp,
                down_p,
                Int32(count),
                Int32(width),
                Int32(inner),
                grid_dim=(tokens, ceildiv(width, EXPERT_WARPS)),
                block_dim=EXPERT_WARPS * 32,
            )
        else:
            var up_panels = ceildiv(inner, PANEL)
            var down_panels = ceildiv(width, PANEL)
            var experts = up.dim_size(0) // max(up_panels, 1)
            check_panels(OP, "up", up, experts * up_panels, width)
            check_panels(OP, "down", down, experts * down_panels, inner)
            check_equal(OP, "rows.shape[0]", rows.dim_size(0), pairs)
            check_equal(OP, "rows.shape[1]", rows.dim_size(1), width)
            check_equal(OP, "sums.shape[0]", sums.dim_size(0), pairs)
            check_equal(OP, "sums.shape[1]", sums.dim_size(1), width)
            check_equal(
                OP,
                "places.shape[0]",
                places.dim_size(0),
                2 * pairs + experts + 1,
            )
            check_indices(OP, "chosen", cp, pairs, 0, experts)
            var rows_p = rows.unsafe_ptr()
            var sums_p = sums.unsafe_ptr()
            var order = places.unsafe_ptr()
            var place_of = places.unsafe_ptr().unsafe_offset(pairs)
            var first = places.unsafe_ptr().unsafe_offset(2 * pairs)
            sort_by_expert(order, first, cp, pairs, experts)
            for i in range(pairs):
                var pair = Int(order[unsafe_offset=i])
                place_of[unsafe_offset=pair] = Int32(i)
                unsafe_memcpy(
                    dest=rows_p.unsafe_offset(i * width),
                    src=xp.unsafe_offset(pair // count * width),
                    count=width,
                )

            def up_work(begin: Int, end: Int) {imm}:
                expert_columns[dtype, dtype, True](
                    hidden_p,
                    rows_p,
                    up_p,
                    first,
                    experts,
                    inner,
                    width,
                    begin,
                    end,
                )

            # A unit of cost is a block of 32 weight rows that meets one row of x.
            for_each_stretch(
                up_work, total_cost(first, experts, inner), 8 * width, ctx
            )

            def down_work(begin: Int, end: Int) {imm}:
                expert_columns[dtype, DType.float32, False](
                    sums_p,
                    hidden_p,
                    down_p,
                    first,
                    experts,
                    width,
                    inner,
                    begin,
                    end,
                )

            for_each_stretch(
                down_work, total_cost(first, experts, width), 8 * inner, ctx
            )

            def sum_work(t: Int) {imm}:
                for c in range(width):
                    var sum = Float32(0)
                    for j in range(count):
                        var at = Int(place_of[unsafe_offset=t * count + j])
                        sum = wp[unsafe_offset=t * count + j].fma(
                            sums_p[unsafe_offset=at * width + c], sum
                        )
                    result_p[unsafe_offset=t * width + c] = sum.cast[dtype]()

            for_each_range(sum_work, tokens, width * count, ctx)
