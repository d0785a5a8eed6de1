"""Wrapper of the op that chooses tokens: `sample`."""

from __future__ import annotations

from max.dtype import DType
from max.graph import StaticDim, TensorType, TensorValue, ops

from .limits import VOCAB_LIMIT
from .operands import check

REALS = 6
"""Settings of a row that are real numbers."""
WHOLES = 4
"""Settings of a row that are whole numbers."""


def sample(
    logits: TensorValue,
    real: TensorValue,
    whole: TensorValue,
    edit_start: TensorValue,
    edit_token: TensorValue,
    edit_count: TensorValue,
    edit_bias: TensorValue,
    mask_row: TensorValue,
    masks: TensorValue,
) -> TensorValue:
    """Chooses a token from each row of logits; a row's token does not depend on the rows beside it.

    In this order, all in f32: edits, l += bias; if count >= 0, l = l / repetition if l > 0 else
    l * repetition; l -= frequency * count, and presence where count > 0. Where the row has a mask,
    l = -inf for tokens that it does not allow. Temperature 0 takes the largest l. Otherwise
    l / temperature; top-k keeps the k largest; top-p, of those, the fewest largest that have this
    share of their mass; min-p those at least this likely, relative to the likeliest. Equal logits
    stay or go together. The result is the largest l + g of what is kept, with g Gumbel noise of
    Philox4x32-10: word id % 4 for the key (seed) and the counter (id // 4, position, 0, 0). Ties go
    to the lowest id.

    Args:
        logits: [rows, vocab] f32; not changed; vocab is at most 524,288.
        real: [rows, 6] f32: temperature, top_p, min_p, repetition, presence and frequency penalty.
        whole: [rows, 4] i32: top_k (0 = all), seed low word, seed high word, position of the
            token in its sequence.
        edit_start: [rows + 1] i32; row r has the edits from edit_start[r] to edit_start[r + 1].
        edit_token: [edits] i32, distinct within a row.
        edit_count: [edits] i32; how often the text has the token, 0 = the prompt alone has it,
            -1 = neither: only the bias counts.
        edit_bias: [edits] f32; -inf forbids the token.
        mask_row: [rows] i32; which of the masks each row has, -1 = none.
        masks: [masks, ceil(vocab / 32)] i32; bit t % 32 of word t / 32 allows token t.

    Returns:
        The tokens, [rows, 1] i64. Rows without a finite logit give their first +inf, or 0.

    Raises:
        ValueError: An operand's rank or dtype or a size is not as above (when built); an edit, a
            mask's row or a symbolic vocab is out of range (when run; the first two on a CPU only).

    See: mojo_kernels/sample.mojo; tests/reference/sample.py.
    """
    op = "coachwhip.sample"
    check(op, "logits", logits, 2, DType.float32)
    check(op, "real", real, 2, DType.float32)
    check(op, "whole", whole, 2, DType.int32)
    check(op, "edit_start", edit_start, 1, DType.int32)
    check(op, "edit_token", edit_token, 1, DType.int32)
    check(op, "edit_count", edit_count, 1, DType.int32)
    check(op, "edit_bias", edit_bias, 1, DType.float32)
    check(op, "mask_row", mask_row, 1, DType.int32)
    check(op, "masks", masks, 2, DType.int32)
    for name, value, columns in (("real", real, REALS), ("whole", whole, WHOLES)):
        if value.shape[1] != columns:
            raise ValueError(f"{op}: {name} has {value.shape[1]} columns, expected {columns}")
    vocab = logits.shape[1]
    if isinstance(vocab, StaticDim) and not 1 <= int(vocab) <= VOCAB_LIMIT:
        raise ValueError(f"{op}: logits has {vocab} columns (vocab), expected 1 to {VOCAB_LIMIT}")
    return ops.custom(
        op,
        device=logits.device,
        values=[
            logits,
            real,
            whole,
            edit_start,
            edit_token,
            edit_count,
            edit_bias,
            mask_row,
            masks,
        ],
        out_types=[
            TensorType(DType.int64, [logits.shape[0], 1], logits.device),
            # Room for edited logits, an output so that the graph's memory planner owns it.
            logits.type,
        ],
    )[0].tensor
