"""Registers `coachwhip.sample`: operand checks, then the CPU or the GPU kernel."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.math import ceildiv

from .ragged import check_equal, check_indices, for_each_range
from .sample import sample_row, settings_of
from .sample_gpu import THREADS, sample_gpu
from .sample_mask import TOKENS_PER_WORD
from .sample_threshold import MAX_VOCAB

comptime DRAW_COST = 8
"""Cost of a token that may be drawn, in tokens of which the largest is looked for."""


def check_edits(
    op: StaticString,
    edit_start: Pointer[mut=False, Int32, ...],
    rows: Int,
    edits: Int,
) raises:
    """Raises unless the rows' edits follow one another among those that there are.

    Args:
        op: Name of the op, for the message.
        edit_start: First edit of each row, `[rows + 1]`.
        rows: Number of rows.
        edits: Number of edits.

    Raises:
        When an entry is out of order; the message names it and its value.
    """
    var least = 0
    for r in range(rows + 1):
        var start = Int(edit_start[unsafe_offset=r])
        if start < least or start > edits:
            raise Error(
                op,
                ": edit_start[",
                r,
                "] is ",
                start,
                ", outside [",
                least,
                ", ",
                edits,
                "]",
            )
        least = start


@extensibility.register("coachwhip.sample")
struct Sample:
    """Chooses a token from each row of logits."""

    @staticmethod
    def execute[
        target: StaticString
    ](
        tokens: OutputTensor[dtype=DType.int64, rank=2, ...],
        space: OutputTensor[dtype=DType.float32, rank=2, ...],
        logits: InputTensor[dtype=DType.float32, rank=2, ...],
        real: InputTensor[dtype=DType.float32, rank=2, ...],
        whole: InputTensor[dtype=DType.int32, rank=2, ...],
        edit_start: InputTensor[dtype=DType.int32, rank=1, ...],
        edit_token: InputTensor[dtype=DType.int32, rank=1, ...],
        edit_count: InputTensor[dtype=DType.int32, rank=1, ...],
        edit_bias: InputTensor[dtype=DType.float32, rank=1, ...],
        mask_row: InputTensor[dtype=DType.int32, rank=1, ...],
        masks: InputTensor[dtype=DType.int32, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        """Chooses the tokens; see `sample.mojo`.

        Parameters:
            target: "cpu" or "gpu".

        Args:
            tokens: Output, `[rows, 1]`.
            space: Work space for rows with edits or a mask, `[rows, vocab]`.
            logits: The logits, `[rows, vocab]`.
            real: Temperature, top_p, min_p, repetition, presence and frequency penalty, `[rows, 6]`.
            whole: Value of top_k, the two words of the seed, position, `[rows, 4]`.
            edit_start: First edit of each row, `[rows + 1]`.
            edit_token: Tokens to edit, distinct within a row, `[edits]`.
            edit_count: How often the text has each; 0: the prompt alone, -1: neither, `[edits]`.
            edit_bias: Added to each logit, `[edits]`.
            mask_row: Which mask each row has; -1: none, `[rows]`.
            masks: One bit per token, see `sample_mask.mojo`, `[masks, ceil(vocab / 32)]`.
            ctx: Device context.

        Raises:
            When an operand's shape or, on a CPU, an edit or a mask's row is out of range; the message names it.
        """
        comptime OP = "coachwhip.sample"
        var rows = logits.dim_size(0)
        var vocab = logits.dim_size(1)
        var edits = edit_token.dim_size(0)
        if vocab < 1 or vocab > MAX_VOCAB:
            raise Error(
                OP,
                ": logits.shape[1] is ",
                vocab,
                ", expected 1 to ",
                MAX_VOCAB,
            )
        check_equal(OP, "tokens.shape[0]", tokens.dim_size(0), rows)
        check_equal(OP, "tokens.shape[1]", tokens.dim_size(1), 1)
        check_equal(OP, "space.shape[0]", space.dim_size(0), rows)
        check_equal(OP, "space.shape[1]", space.dim_size(1), vocab)
        check_equal(OP, "logits.strides[0]", logits.strides()[0], vocab)
        check_equal(OP, "real.shape[0]", real.dim_size(0), rows)
        check_equal(OP, "real.shape[1]", real.dim_size(1), 6)
        check_equal(OP, "whole.shape[0]", whole.dim_size(0), rows)
        check_equal(OP, "whole.shape[1]", whole.dim_size(1), 4)
        check_equal(OP, "edit_start.shape[0]", edit_start.dim_size(0), rows + 1)
        check_equal(OP, "edit_count.shape[0]", edit_count.dim_size(0), edits)
        check_equal(OP, "edit_bias.shape[0]", edit_bias.dim_size(0), edits)
        var words = ceildiv(vocab, TOKENS_PER_WORD)
        check_equal(OP, "mask_row.shape[0]", mask_row.dim_size(0), rows)
        check_equal(OP, "masks.shape[1]", masks.dim_size(1), words)
        check_equal(OP, "masks.strides[0]", masks.strides()[0], words)
        var tp = tokens.unsafe_ptr()
        var sp = space.unsafe_ptr()
        var lp = logits.unsafe_ptr()
        var rp = real.unsafe_ptr()
        var wp = whole.unsafe_ptr()
        var esp = edit_start.unsafe_ptr()
        var etp = edit_token.unsafe_ptr()
        var ecp = edit_count.unsafe_ptr()
        var ebp = edit_bias.unsafe_ptr()
        var mrp = mask_row.unsafe_ptr()
        var mp = masks.unsafe_ptr()
        if rows == 0:
            return

        comptime if is_gpu[target]():
            ctx.enqueue_function[sample_gpu](
                tp,
                sp,
                lp,
                rp,
                wp,
                esp,
                etp,
                ecp,
                ebp,
                mrp,
                mp,
                Int32(vocab),
                Int32(words),
                grid_dim=rows,
                block_dim=THREADS,
            )
        else:
            check_edits(OP, esp, rows, edits)
            var used = Int(esp[unsafe_offset=rows])
            check_indices(OP, "edit_token", etp, used, 0, vocab)
            check_indices(OP, "mask_row", mrp, rows, -1, masks.dim_size(0))

            def work(r: Int) {imm}:
                var begin = Int(esp[unsafe_offset=r])
                var which = Int(mrp[unsafe_offset=r])
                tp[unsafe_offset=r] = Int64(
                    sample_row(
                        sp.unsafe_offset(r * vocab),
                        lp.unsafe_offset(r * vocab),
                        vocab,
                        settings_of(
                            rp.unsafe_offset(r * 6), wp.unsafe_offset(r * 4)
                        ),
                        etp.unsafe_offset(begin),
                        ecp.unsafe_offset(begin),
                        ebp.unsafe_offset(begin),
                        Int(esp[unsafe_offset=r + 1]) - begin,
                        mp.unsafe_offset(max(which, 0) * words),
                        which >= 0,
                    )
                )

            var drawn = 0
            for r in range(rows):
                drawn += Int(rp[unsafe_offset=6 * r] != 0)
            var cost = vocab + drawn * vocab // rows * (DRAW_COST - 1)
            for_each_range(work, rows, cost, ctx)
