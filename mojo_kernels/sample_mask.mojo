"""Which tokens a row of logits may give: packed masks, one bit per token.

Token t is allowed where bit t % 32 of word t / 32 is 1; bits after the last token mean nothing.
A token that is not allowed has the logit -inf, whatever its logit and its edits were.

See: tests/reference/sample.py.
"""

from std.math import iota
from std.utils.numerics import neg_inf

from .sample_threshold import F, LANES, U, Vec

comptime TOKENS_PER_WORD = 32
"""Tokens that one word of a mask holds."""


@always_inline
def allows(mask: Pointer[mut=False, Int32, ...], token: Int) -> Bool:
    """Returns whether a mask allows a token.

    Args:
        mask: The mask.
        token: The token's id.

    Returns:
        True where its bit is 1.
    """
    var word = mask[unsafe_offset=token // TOKENS_PER_WORD].cast[U]()
    return (word >> UInt32(token % TOKENS_PER_WORD)) & 1 != 0


def copy_allowed(
    to: Pointer[mut=True, Float32, ...],
    row: Pointer[mut=False, Float32, ...],
    mask: Pointer[mut=False, Int32, ...],
    count: Int,
):
    """Copies the logits of allowed tokens, and -inf for the others.

    Args:
        to: The copy, `[count]`.
        row: Logits, `[count]`.
        mask: The mask.
        count: Number of tokens.
    """
    comptime Words = SIMD[U, LANES]
    for i in range(0, count - LANES + 1, LANES):
        var word = Words(mask[unsafe_offset=i // TOKENS_PER_WORD].cast[U]())
        var bits = word >> (iota[U, LANES]() + UInt32(i % TOKENS_PER_WORD))
        var on = (bits & 1).ne(Words(0))
        to.unsafe_store(
            i, on.select(row.unsafe_load[width=LANES](i), Vec(neg_inf[F]()))
        )
    for i in range(count // LANES * LANES, count):
        to[unsafe_offset=i] = row[unsafe_offset=i] if allows(
            mask, i
        ) else neg_inf[F]()
