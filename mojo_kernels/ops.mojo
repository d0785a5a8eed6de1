"""Registers the ops of Mamba2 mixers, of attention and of pools: operand checks, then the kernel.

No arithmetic lives here.

Shapes are checked on both devices. Slots, pages and row offsets live in device memory on a GPU, so
there the runner checks them on the host before it launches; on a CPU they are checked here, on the
calling thread, before any parallel region (a raise inside one would end the process).
"""

import extensibility
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.math import ceildiv

from .attention import attend_row
from .attention_gpu import WARPS, attention_gpu, store_kv_gpu
from .conv1d import CHANNEL_BLOCK, conv_block
from .conv1d_gpu import conv1d_gpu
from .copy_rows import copy_row
from .copy_rows_gpu import copy_rows_gpu
from .gated_rms_norm import norm_group
from .gated_rms_norm_gpu import THREADS, gated_rms_norm_gpu
from .ragged import (
    check_equal,
    check_indices,
    check_seq_start,
    for_each_range,
    for_each_unit_and_sequence,
)
from .ssm_scan import MAX_HEAD_VALUES, MAX_HEADDIM, scan_head
from .ssm_scan_gpu import SPLITS, ssm_scan_gpu


@extensibility.register("coachwhip.conv1d")
struct Conv1d:
    """Causal depthwise convolution with windows in slots."""

    @staticmethod
    def execute[
        dtype: DType,
        //,
        d_conv: Int,
        activation: StaticString,
        x_offset: Int,
        target: StaticString,
    ](
        y: OutputTensor[dtype=dtype, rank=2, ...],
        pool: MutableInputTensor[dtype=dtype, rank=4, ...],
        x: InputTensor[dtype=dtype, rank=2, ...],
        weight: InputTensor[dtype=DType.float32, rank=2, ...],
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        seq_start: InputTensor[dtype=DType.int32, rank=1, ...],
        read_slot: InputTensor[dtype=DType.int32, rank=1, ...],
        write_slot: InputTensor[dtype=DType.int32, rank=1, ...],
        layer: Int32,
        ctx: DeviceContext,
    ) raises:
        """Runs the convolution of one layer; see `conv1d.mojo`.

        Parameters:
            dtype: Type of rows and windows.
            d_conv: Taps, 2 to 4.
            activation: "silu" or "none".
            x_offset: Column of `x` where the channels begin.
            target: "cpu" or "gpu".

        Args:
            y: Output, `[tokens, channels]`.
            pool: Windows, `[slots, layers, d_conv - 1, channels]`, changed in place.
            x: Input, `[tokens, >= x_offset + channels]`.
            weight: Taps, `[d_conv, channels]`.
            bias: Bias, `[channels]`.
            seq_start: First row of each sequence, `[batch + 1]`.
            read_slot: Initial window of each sequence, -1 for zeros, `[batch]`.
            write_slot: Where each row's window goes, -1 for nowhere, `[tokens]`.
            layer: Layer of the pool.
            ctx: Device context.

        Raises:
            When an operand's shape or, on a CPU, an index is out of range; the message names it.
        """
        comptime OP = "coachwhip.conv1d"
        comptime assert (
            activation == "silu" or activation == "none"
        ), "activation must be silu or none"
        comptime assert 2 <= d_conv <= 4, "d_conv must be 2, 3 or 4"
        comptime assert x_offset >= 0, "x_offset must not be negative"
        var tokens = x.dim_size(0)
        var channels = y.dim_size(1)
        var batch = seq_start.dim_size(0) - 1
        var x_stride = x.dim_size(1)
        var index = Int(layer)
        check_equal(OP, "y.shape[0]", y.dim_size(0), tokens)
        check_equal(OP, "pool.shape[2]", pool.dim_size(2), d_conv - 1)
        check_equal(OP, "pool.shape[3]", pool.dim_size(3), channels)
        check_equal(OP, "weight.shape[0]", weight.dim_size(0), d_conv)
        check_equal(OP, "weight.shape[1]", weight.dim_size(1), channels)
        check_equal(OP, "bias.shape[0]", bias.dim_size(0), channels)
        check_equal(OP, "read_slot.shape[0]", read_slot.dim_size(0), batch)
        check_equal(OP, "write_slot.shape[0]", write_slot.dim_size(0), tokens)
        check_equal(OP, "x.strides[1]", x.strides()[1], 1)
        check_equal(OP, "x.strides[0]", x.strides()[0], x_stride)
        check_equal(OP, "channels % 16", channels % 16, 0)
        if x_offset + channels > x_stride:
            raise Error(
                OP,
                ": x has ",
                x_stride,
                " columns, but channels ",
                x_offset,
                " to ",
                x_offset + channels,
                " were asked for",
            )
        if index < 0 or index >= pool.dim_size(1):
            raise Error(
                OP,
                ": layer is ",
                index,
                ", the pool has ",
                pool.dim_size(1),
                " layers",
            )
        var layer_stride = (d_conv - 1) * channels
        var slot_stride = pool.dim_size(1) * layer_stride
        var yp = y.unsafe_ptr()
        var pp = pool.unsafe_ptr().unsafe_offset(index * layer_stride)
        var xp = x.unsafe_ptr().unsafe_offset(x_offset)
        var wp = weight.unsafe_ptr()
        var bp = bias.unsafe_ptr()
        var sp = seq_start.unsafe_ptr()
        var rp = read_slot.unsafe_ptr()
        var op = write_slot.unsafe_ptr()
        if tokens == 0 or batch <= 0:
            return

        comptime if is_gpu[target]():
            comptime BLOCK = 128
            ctx.enqueue_function[conv1d_gpu[dtype, d_conv, activation]](
                yp,
                xp,
                wp,
                bp,
                pp,
                sp,
                rp,
                op,
                Int32(channels),
                Int32(x_stride),
                Int64(slot_stride),
                grid_dim=(batch, ceildiv(channels, BLOCK)),
                block_dim=BLOCK,
            )
        else:
            check_seq_start(OP, sp, batch, tokens)
            check_indices(OP, "read_slot", rp, batch, -1, pool.dim_size(0))
            check_indices(OP, "write_slot", op, tokens, -1, pool.dim_size(0))

            def work(unit: Int, s: Int) {imm}:
                var t0 = Int(sp[unsafe_offset=s])
                var ch = unit * CHANNEL_BLOCK
                conv_block[dtype, d_conv, activation](
                    yp.unsafe_offset(t0 * channels + ch),
                    channels,
                    xp.unsafe_offset(t0 * x_stride + ch),
                    x_stride,
                    wp.unsafe_offset(ch),
                    bp.unsafe_offset(ch),
                    channels,
                    pp.unsafe_offset(ch),
                    slot_stride,
                    Int(rp[unsafe_offset=s]),
                    op.unsafe_offset(t0),
                    Int(sp[unsafe_offset=s + 1]) - t0,
                    min(CHANNEL_BLOCK, channels - ch),
                )

            # One row of a channel costs about as much as 16 state values of the scan.
            for_each_unit_and_sequence(
                work,
                ceildiv(channels, CHANNEL_BLOCK),
                batch,
                sp,
                16 * CHANNEL_BLOCK,
                ctx,
            )


@extensibility.register("coachwhip.ssm_scan")
struct SSMScan:
    """The Mamba2 recurrence with states in slots."""

    @staticmethod
    def execute[
        dtype: DType,
        state_dtype: DType,
        //,
        dstate: Int,
        headdim: Int,
        dt_offset: Int,
        dt_min: Float64,
        dt_max: Float64,
        target: StaticString,
    ](
        y: OutputTensor[dtype=dtype, rank=2, ...],
        pool: MutableInputTensor[dtype=state_dtype, rank=4, ...],
        xbc: InputTensor[dtype=dtype, rank=2, ...],
        dt: InputTensor[dtype=dtype, rank=2, ...],
        a: InputTensor[dtype=DType.float32, rank=1, ...],
        d: InputTensor[dtype=DType.float32, rank=1, ...],
        dt_bias: InputTensor[dtype=DType.float32, rank=1, ...],
        seq_start: InputTensor[dtype=DType.int32, rank=1, ...],
        read_slot: InputTensor[dtype=DType.int32, rank=1, ...],
        write_slot: InputTensor[dtype=DType.int32, rank=1, ...],
        layer: Int32,
        ctx: DeviceContext,
    ) raises:
        """Runs the recurrence of one layer; see `ssm_scan.mojo`.

        Parameters:
            dtype: Type of rows and outputs.
            state_dtype: Type of the pool: float32, float16 or bfloat16.
            dstate: State size, a multiple of 16 up to 256.
            headdim: Head size, a multiple of 16.
            dt_offset: Column of `dt` where the heads' time steps begin.
            dt_min: Lower bound of dt after softplus; 0 for none.
            dt_max: Upper bound; infinite for none.
            target: "cpu" or "gpu".

        Args:
            y: Output, `[tokens, nheads * headdim]`.
            pool: States, `[slots, layers, nheads, headdim * dstate]`, each head kept as
                `[dstate / 16, headdim / 16, 16, 16]`; changed in place.
            xbc: Rows x | B | C, `[tokens, nheads * headdim + 2 * ngroups * dstate]`.
            dt: Time steps before bias and softplus, `[tokens, >= dt_offset + nheads]`.
            a: A, negative, `[nheads]`.
            d: D, `[nheads]`.
            dt_bias: Bias of dt, `[nheads]`.
            seq_start: First row of each sequence, `[batch + 1]`.
            read_slot: Initial state of each sequence, -1 for zeros, `[batch]`.
            write_slot: Where each row's state goes, -1 for nowhere, `[tokens]`.
            layer: Layer of the pool.
            ctx: Device context.

        Raises:
            When an operand's shape or, on a CPU, an index is out of range; the message names it.
        """
        comptime OP = "coachwhip.ssm_scan"
        comptime assert (
            headdim % 16 == 0 and headdim <= MAX_HEADDIM
        ), "headdim must be a multiple of 16 up to 256"
        comptime assert (
            headdim * dstate <= MAX_HEAD_VALUES
        ), "headdim * dstate is too large"
        comptime assert dt_offset >= 0, "dt_offset must not be negative"
        var tokens = xbc.dim_size(0)
        var nheads = a.dim_size(0)
        var batch = seq_start.dim_size(0) - 1
        var d_inner = nheads * headdim
        var width = xbc.dim_size(1)
        var dt_stride = dt.dim_size(1)
        var ngroups = (width - d_inner) // (2 * dstate)
        var index = Int(layer)
        check_equal(OP, "y.shape[0]", y.dim_size(0), tokens)
        check_equal(OP, "y.shape[1]", y.dim_size(1), d_inner)
        check_equal(OP, "dt.shape[0]", dt.dim_size(0), tokens)
        check_equal(OP, "pool.shape[2]", pool.dim_size(2), nheads)
        check_equal(OP, "pool.shape[3]", pool.dim_size(3), headdim * dstate)
        check_equal(OP, "d.shape[0]", d.dim_size(0), nheads)
        check_equal(OP, "dt_bias.shape[0]", dt_bias.dim_size(0), nheads)
        check_equal(OP, "read_slot.shape[0]", read_slot.dim_size(0), batch)
        check_equal(OP, "write_slot.shape[0]", write_slot.dim_size(0), tokens)
        check_equal(OP, "xbc.strides[1]", xbc.strides()[1], 1)
        check_equal(OP, "xbc.strides[0]", xbc.strides()[0], width)
        check_equal(OP, "dt.strides[0]", dt.strides()[0], dt_stride)
        if (
            ngroups < 1
            or width != d_inner + 2 * ngroups * dstate
            or nheads % ngroups != 0
        ):
            raise Error(
                OP,
                ": xbc.shape[1] is ",
                width,
                ", expected ",
                d_inner,
                " + 2 * ngroups * ",
                dstate,
                " with ngroups a divisor of nheads = ",
                nheads,
            )
        if dt_offset + nheads > dt_stride:
            raise Error(
                OP,
                ": dt has ",
                dt_stride,
                " columns, but ",
                nheads,
                " heads from column ",
                dt_offset,
                " were asked for",
            )
        if index < 0 or index >= pool.dim_size(1):
            raise Error(
                OP,
                ": layer is ",
                index,
                ", the pool has ",
                pool.dim_size(1),
                " layers",
            )
        var head_values = headdim * dstate
        var slot_stride = pool.dim_size(1) * nheads * head_values
        var yp = y.unsafe_ptr()
        var pp = pool.unsafe_ptr().unsafe_offset(index * nheads * head_values)
        var xp = xbc.unsafe_ptr()
        var tp = dt.unsafe_ptr().unsafe_offset(dt_offset)
        var ap = a.unsafe_ptr()
        var dp = d.unsafe_ptr()
        var bp = dt_bias.unsafe_ptr()
        var sp = seq_start.unsafe_ptr()
        var rp = read_slot.unsafe_ptr()
        var op = write_slot.unsafe_ptr()
        if tokens == 0 or batch <= 0:
            return

        comptime if is_gpu[target]():
            ctx.enqueue_function[ssm_scan_gpu[dtype, state_dtype, dstate]](
                yp,
                xp,
                tp,
                ap,
                dp,
                bp,
                pp,
                sp,
                rp,
                op,
                Int32(nheads),
                Int32(headdim),
                Int32(ngroups),
                Int32(dt_stride),
                Int64(slot_stride),
                Float32(dt_min),
                Float32(dt_max),
                grid_dim=(batch, nheads),
                block_dim=headdim * SPLITS,
            )
        else:
            check_seq_start(OP, sp, batch, tokens)
            check_indices(OP, "read_slot", rp, batch, -1, pool.dim_size(0))
            check_indices(OP, "write_slot", op, tokens, -1, pool.dim_size(0))
            var heads_per_group = nheads // ngroups

            def work(h: Int, s: Int) {imm}:
                var t0 = Int(sp[unsafe_offset=s])
                var row = xp.unsafe_offset(t0 * width)
                var group = d_inner + h // heads_per_group * dstate
                scan_head[dtype, state_dtype, dstate](
                    yp.unsafe_offset(t0 * d_inner + h * headdim),
                    d_inner,
                    row.unsafe_offset(h * headdim),
                    row.unsafe_offset(group),
                    row.unsafe_offset(group + ngroups * dstate),
                    width,
                    tp.unsafe_offset(t0 * dt_stride + h),
                    dt_stride,
                    ap[unsafe_offset=h],
                    dp[unsafe_offset=h],
                    bp[unsafe_offset=h],
                    Float32(dt_min),
                    Float32(dt_max),
                    pp.unsafe_offset(h * head_values),
                    slot_stride,
                    Int(rp[unsafe_offset=s]),
                    op.unsafe_offset(t0),
                    Int(sp[unsafe_offset=s + 1]) - t0,
                    headdim,
                )

            for_each_unit_and_sequence(
                work, nheads, batch, sp, head_values, ctx
            )


@extensibility.register("coachwhip.gated_rms_norm")
struct GatedRMSNorm:
    """Gated RMSNorm per group of the Mamba2 mixer."""

    @staticmethod
    def execute[
        dtype: DType, //, groups: Int, z_offset: Int, target: StaticString
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        y: InputTensor[dtype=dtype, rank=2, ...],
        z: InputTensor[dtype=dtype, rank=2, ...],
        weight: InputTensor[dtype=DType.float32, rank=1, ...],
        eps: Float32,
        ctx: DeviceContext,
    ) raises:
        """Normalises each group of each row; see `gated_rms_norm.mojo`.

        Parameters:
            dtype: Type of the rows.
            groups: Groups per row.
            z_offset: Column of `z` where the gate begins.
            target: "cpu" or "gpu".

        Args:
            result: Output, `[tokens, width]`.
            y: Output of the scan, `[tokens, width]`.
            z: Gate, `[tokens, >= z_offset + width]`.
            weight: Norm weight, `[width]`.
            eps: Added to the mean square.
            ctx: Device context.

        Raises:
            When an operand's shape or, on a CPU, an index is out of range; the message names it.
        """
        comptime OP = "coachwhip.gated_rms_norm"
        comptime assert z_offset >= 0, "z_offset must not be negative"
        var tokens = y.dim_size(0)
        var width = y.dim_size(1)
        var z_stride = z.dim_size(1)
        check_equal(OP, "result.shape[0]", result.dim_size(0), tokens)
        check_equal(OP, "result.shape[1]", result.dim_size(1), width)
        check_equal(OP, "z.shape[0]", z.dim_size(0), tokens)
        check_equal(OP, "z.strides[0]", z.strides()[0], z_stride)
        check_equal(OP, "weight.shape[0]", weight.dim_size(0), width)
        check_equal(OP, "y.shape[1] % groups", width % groups, 0)
        check_equal(OP, "group size % 16", width // groups % 16, 0)
        if z_offset + width > z_stride:
            raise Error(
                OP,
                ": z has ",
                z_stride,
                " columns, but columns ",
                z_offset,
                " to ",
                z_offset + width,
                " were asked for",
            )
        var outp = result.unsafe_ptr()
        var yp = y.unsafe_ptr()
        var zp = z.unsafe_ptr().unsafe_offset(z_offset)
        var wp = weight.unsafe_ptr()
        var size = width // groups
        if tokens == 0:
            return

        comptime if is_gpu[target]():
            ctx.enqueue_function[gated_rms_norm_gpu[dtype]](
                outp,
                yp,
                zp,
                wp,
                Int32(width),
                Int32(z_stride),
                Int32(groups),
                eps,
                grid_dim=(tokens, groups),
                block_dim=THREADS,
            )
        else:

            def work(row: Int) {imm}:
                for g in range(groups):
                    norm_group[dtype](
                        outp.unsafe_offset(row * width + g * size),
                        yp.unsafe_offset(row * width + g * size),
                        zp.unsafe_offset(row * z_stride + g * size),
                        wp.unsafe_offset(g * size),
                        eps,
                        size,
                    )

            # Two exponentials a value: about 16 state values of the scan.
            for_each_range(work, tokens, 16 * width, ctx)


@extensibility.register("coachwhip.attention")
struct Attention:
    """Paged causal grouped-query attention; stores new keys and values first.
    """

    @staticmethod
    def execute[
        dtype: DType,
        cache_dtype: DType,
        //,
        head_dim: Int,
        target: StaticString,
    ](
        result: OutputTensor[dtype=dtype, rank=2, ...],
        pages: MutableInputTensor[dtype=cache_dtype, rank=6, ...],
        q: InputTensor[dtype=dtype, rank=2, ...],
        k: InputTensor[dtype=dtype, rank=2, ...],
        v: InputTensor[dtype=dtype, rank=2, ...],
        seq_start: InputTensor[dtype=DType.int32, rank=1, ...],
        kv_length: InputTensor[dtype=DType.int32, rank=1, ...],
        block_table: InputTensor[dtype=DType.int32, rank=2, ...],
        layer: Int32,
        scale: Float32,
        ctx: DeviceContext,
    ) raises:
        """Stores the new rows' keys and values, then attends; see `attention.mojo`.

        Parameters:
            dtype: Type of rows and outputs.
            cache_dtype: Type of the pages; softmax and sums are float32.
            head_dim: Head size, a multiple of 16.
            target: "cpu" or "gpu".

        Args:
            result: Output, `[tokens, heads * head_dim]`.
            pages: Pool, `[pages, layers, 2, kv_heads, page_size, head_dim]`, changed in place.
            q: Queries, `[tokens, heads * head_dim]`.
            k: New keys, `[tokens, kv_heads * head_dim]`.
            v: New values, `[tokens, kv_heads * head_dim]`.
            seq_start: First row of each sequence, `[batch + 1]`.
            kv_length: Keys each sequence had before this step, `[batch]`.
            block_table: Pages of each sequence in order, -1 past its end,
                `[batch, most pages of a sequence]`.
            layer: Attention layer of the pool.
            scale: Factor on q . k.
            ctx: Device context.

        Raises:
            When an operand's shape or, on a CPU, an index is out of range; the message names it.
        """
        comptime OP = "coachwhip.attention"
        comptime assert head_dim % 16 == 0, "head_dim must be a multiple of 16"
        var tokens = q.dim_size(0)
        var batch = seq_start.dim_size(0) - 1
        var kv_heads = pages.dim_size(3)
        var page_size = pages.dim_size(4)
        var heads = q.dim_size(1) // head_dim
        var table_width = block_table.dim_size(1)
        var index = Int(layer)
        check_equal(OP, "result.shape[0]", result.dim_size(0), tokens)
        check_equal(OP, "result.shape[1]", result.dim_size(1), q.dim_size(1))
        check_equal(OP, "pages.shape[2]", pages.dim_size(2), 2)
        check_equal(OP, "pages.shape[5]", pages.dim_size(5), head_dim)
        check_equal(OP, "page_size % 8", page_size % 8, 0)
        check_equal(OP, "q.shape[1]", q.dim_size(1), heads * head_dim)
        check_equal(OP, "k.shape[0]", k.dim_size(0), tokens)
        check_equal(OP, "k.shape[1]", k.dim_size(1), kv_heads * head_dim)
        check_equal(OP, "v.shape[0]", v.dim_size(0), tokens)
        check_equal(OP, "v.shape[1]", v.dim_size(1), kv_heads * head_dim)
        check_equal(OP, "heads % kv_heads", heads % kv_heads, 0)
        check_equal(OP, "kv_length.shape[0]", kv_length.dim_size(0), batch)
        check_equal(OP, "block_table.shape[0]", block_table.dim_size(0), batch)
        check_equal(OP, "q.strides[0]", q.strides()[0], q.dim_size(1))
        check_equal(OP, "k.strides[0]", k.strides()[0], k.dim_size(1))
        check_equal(OP, "v.strides[0]", v.strides()[0], v.dim_size(1))
        if index < 0 or index >= pages.dim_size(1):
            raise Error(
                OP,
                ": layer is ",
                index,
                ", the pool has ",
                pages.dim_size(1),
                " layers",
            )
        var half = kv_heads * page_size * head_dim
        var page_stride = pages.dim_size(1) * 2 * half
        var outp = result.unsafe_ptr()
        var pp = pages.unsafe_ptr().unsafe_offset(index * 2 * half)
        var qp = q.unsafe_ptr()
        var kp = k.unsafe_ptr()
        var vp = v.unsafe_ptr()
        var sp = seq_start.unsafe_ptr()
        var lp = kv_length.unsafe_ptr()
        var bt = block_table.unsafe_ptr()
        if tokens == 0 or batch <= 0:
            return

        comptime if is_gpu[target]():
            comptime BLOCK = WARPS * 32
            ctx.enqueue_function[store_kv_gpu[dtype, cache_dtype]](
                pp,
                kp,
                vp,
                sp,
                lp,
                bt,
                Int32(batch),
                Int32(table_width),
                Int32(kv_heads),
                Int32(head_dim),
                Int32(page_size),
                Int64(page_stride),
                grid_dim=tokens,
                block_dim=BLOCK,
            )
            ctx.enqueue_function[attention_gpu[dtype, cache_dtype, head_dim]](
                outp,
                qp,
                pp,
                sp,
                lp,
                bt,
                Int32(batch),
                Int32(table_width),
                Int32(heads),
                Int32(kv_heads),
                Int32(page_size),
                Int64(page_stride),
                scale,
                grid_dim=(tokens, heads),
                block_dim=BLOCK,
            )
        else:
            check_seq_start(OP, sp, batch, tokens)
            var longest = 0
            for s in range(batch):
                var before = Int(lp[unsafe_offset=s])
                var rows = Int(sp[unsafe_offset=s + 1] - sp[unsafe_offset=s])
                if before < 0:
                    raise Error(OP, ": kv_length[", s, "] is ", before)
                if rows == 0:
                    continue
                var needed = ceildiv(before + rows, page_size)
                if needed > table_width:
                    raise Error(
                        OP,
                        ": sequence ",
                        s,
                        " needs ",
                        needed,
                        " pages, block_table.shape[1] is ",
                        table_width,
                    )
                check_indices(
                    OP,
                    "block_table",
                    bt.unsafe_offset(s * table_width),
                    needed,
                    0,
                    pages.dim_size(0),
                )
                longest = max(longest, before + rows)
            var group = heads // kv_heads
            for s in range(batch):
                var t0 = Int(sp[unsafe_offset=s])
                for t in range(t0, Int(sp[unsafe_offset=s + 1])):
                    var position = Int(lp[unsafe_offset=s]) + t - t0
                    var page = Int(
                        bt[
                            unsafe_offset=s * table_width
                            + position // page_size
                        ]
                    )
                    var home = pp.unsafe_offset(
                        page * page_stride + position % page_size * head_dim
                    )
                    for h in range(kv_heads):
                        var src = (t * kv_heads + h) * head_dim
                        var dst = h * page_size * head_dim
                        for i in range(0, head_dim, 16):
                            home.unsafe_store(
                                dst + i,
                                kp.unsafe_load[width=16](src + i).cast[
                                    cache_dtype
                                ](),
                            )
                            home.unsafe_store(
                                half + dst + i,
                                vp.unsafe_load[width=16](src + i).cast[
                                    cache_dtype
                                ](),
                            )

            def work(h: Int, s: Int) {imm}:
                var t0 = Int(sp[unsafe_offset=s])
                var base = pp.unsafe_offset(h // group * page_size * head_dim)
                for t in range(t0, Int(sp[unsafe_offset=s + 1])):
                    attend_row[dtype, cache_dtype, head_dim](
                        outp.unsafe_offset((t * heads + h) * head_dim),
                        qp.unsafe_offset((t * heads + h) * head_dim),
                        base,
                        base.unsafe_offset(half),
                        bt.unsafe_offset(s * table_width),
                        page_stride,
                        page_size,
                        Int(lp[unsafe_offset=s]) + t - t0 + 1,
                        scale,
                    )

            for_each_unit_and_sequence(
                work, heads, batch, sp, longest * head_dim, ctx
            )


@extensibility.register("coachwhip.copy_rows")
struct CopyRows:
    """Copies rows of a pool (slots or pages) to other rows of it."""

    @staticmethod
    def execute[
        dtype: DType, //, target: StaticString
    ](
        copies: OutputTensor[dtype=DType.int32, rank=1, ...],
        pool: MutableInputTensor[dtype=dtype, rank=2, ...],
        source: InputTensor[dtype=DType.int32, rank=1, ...],
        destination: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        """Copies row `source[i]` to row `destination[i]` for each i.

        Parameters:
            dtype: Type of the pool.
            target: "cpu" or "gpu".

        Args:
            copies: Not written; gives the op a result that orders it in the graph, `[0]`.
            pool: The pool, `[rows, values per row]`, changed in place.
            source: Rows to read, `[copies]`.
            destination: Rows to write, `[copies]`: distinct, and none of them a source.
            ctx: Device context.

        Raises:
            When an operand's shape or, on a CPU, an index is out of range; the message names it.
        """
        comptime OP = "coachwhip.copy_rows"
        var count = source.dim_size(0)
        var stride = pool.dim_size(1)
        check_equal(OP, "destination.shape[0]", destination.dim_size(0), count)
        var pp = pool.unsafe_ptr()
        var fp = source.unsafe_ptr()
        var tp = destination.unsafe_ptr()
        if count == 0 or stride == 0:
            return

        comptime if is_gpu[target]():
            comptime BLOCK = 256
            ctx.enqueue_function[copy_rows_gpu[dtype]](
                pp,
                fp,
                tp,
                Int64(stride),
                grid_dim=(count, min(ceildiv(stride, BLOCK), 64)),
                block_dim=BLOCK,
            )
        else:
            check_indices(OP, "source", fp, count, 0, pool.dim_size(0))
            check_indices(OP, "destination", tp, count, 0, pool.dim_size(0))
            for i in range(count):
                copy_row[dtype](
                    pp,
                    Int(fp[unsafe_offset=i]),
                    Int(tp[unsafe_offset=i]),
                    0,
                    stride,
                    stride,
                )
