"""Chooses a token from each row of logits, CPU kernel.

    l = logits, with the row's edits; -inf where the row's mask forbids the token
    temperature 0: the largest l
    otherwise: the largest of (l - max) / temperature + Gumbel noise, over the tokens that top-k,
    top-p and min-p keep

Ties go to the lowest id. The filters are lower bounds on l, so what is kept is one comparison per
token. A row reads nothing but its own operands, and its random words come from its seed and
position, so its token does not depend on the rows beside it.

Rows without a finite logit give their first +inf, or token 0. NaN is never chosen beside a number.

See: Keskar et al. 2019, arXiv 1909.05858 (repetition penalty); Holtzman et al. 2020,
arXiv 1904.09751 (top-p); Minh et al. 2024, arXiv 2407.01082 (min-p); tests/reference/sample.py.
"""

from std.math import iota, log
from std.utils.numerics import inf, neg_inf

from .philox import MOST_NOISE, gumbel, log2_below, philox4x32, uniform
from .sample_mask import allows, copy_allowed
from .sample_threshold import (
    LANES,
    LOWEST,
    Vec,
    load_or_low,
    top_k_cut,
    top_p_cut,
)

comptime F = DType.float32
"""Type of logits, scores and noise."""
comptime I = DType.int32
"""Type of token ids."""
comptime U = DType.uint32
"""Type of random words and of keys."""
comptime L = DType.uint64
"""Type of lanes that hold products of words."""
comptime BLOCK = 4 * LANES
"""Tokens that one vector of counters serves."""
comptime LOG2_E = Float32(1.4426950408889634)
"""The logarithm of e to base 2."""
comptime SLACK = Float32(0.01)
"""What the rounding of a sum and of its noise may hide, in powers of two, many times over."""


@fieldwise_init
struct Settings(Copyable, Movable):
    """What one row asks for."""

    var temperature: Float32
    """0 takes the largest logit."""
    var top_p: Float32
    """Share of the mass that is kept; 1 keeps all."""
    var min_p: Float32
    """Least probability that is kept, relative to the largest."""
    var repetition_penalty: Float32
    """Divides positive logits and multiplies negative ones."""
    var presence_penalty: Float32
    """Taken off tokens of the text."""
    var frequency_penalty: Float32
    """Taken off as often as the text has the token."""
    var top_k: Int
    """Tokens that are kept; 0 keeps all."""
    var seed_low: UInt32
    """First word of the seed."""
    var seed_high: UInt32
    """Second word of the seed."""
    var position: UInt32
    """Place of the sampled token in its sequence."""


@always_inline
def settings_of(
    real: Pointer[mut=False, Float32, ...],
    whole: Pointer[mut=False, Int32, ...],
) -> Settings:
    """Reads the settings of a row.

    Args:
        real: Temperature, top_p, min_p, repetition, presence and frequency penalty, `[6]`.
        whole: Value of top_k, the two words of the seed, position, `[4]`.

    Returns:
        The settings.
    """
    return Settings(
        temperature=real[unsafe_offset=0],
        top_p=real[unsafe_offset=1],
        min_p=real[unsafe_offset=2],
        repetition_penalty=real[unsafe_offset=3],
        presence_penalty=real[unsafe_offset=4],
        frequency_penalty=real[unsafe_offset=5],
        top_k=Int(whole[unsafe_offset=0]),
        seed_low=whole[unsafe_offset=1].cast[U](),
        seed_high=whole[unsafe_offset=2].cast[U](),
        position=whole[unsafe_offset=3].cast[U](),
    )


@always_inline
def edited(
    logit: Float32, bias: Float32, times: Int32, settings: Settings
) -> Float32:
    """Returns a logit with its bias and penalties.

    Args:
        logit: The logit.
        bias: Added to it; -inf forbids the token.
        times: How often the text has the token; 0 when only the prompt has it, -1 when neither.
        settings: The penalties.

    Returns:
        The new logit.
    """
    var value = logit + bias
    if times < 0:
        return value
    var penalty = settings.repetition_penalty
    value = value / penalty if value > 0 else value * penalty
    value -= settings.frequency_penalty * Float32(times)
    return value - settings.presence_penalty if times > 0 else value


def first_largest(row: Pointer[mut=False, Float32, ...], count: Int) -> Int:
    """Returns where the largest value is, the first of equal ones.

    Args:
        row: Logits, `[count]`.
        count: Number of tokens.

    Returns:
        Its index; 0 when there is no number above -inf.
    """
    comptime At = SIMD[I, LANES]
    var best = Array[Vec, 4](fill=Vec(neg_inf[F]()))
    var at = Array[At, 4](fill=At(0))
    var whole = count // BLOCK * BLOCK
    for i in range(0, whole, BLOCK):
        comptime for j in range(4):
            var value = row.unsafe_load[width=LANES](i + j * LANES)
            var larger = value.gt(best[j])
            best[j] = larger.select(value, best[j])
            at[j] = larger.select(At(i + j * LANES), at[j])
    for i in range(whole, count, LANES):
        var value = load_or_low(row, i, count)
        var larger = value.gt(best[0])
        best[0] = larger.select(value, best[0])
        at[0] = larger.select(At(i), at[0])
    var top = Vec(neg_inf[F]())
    comptime for j in range(4):
        top = max(top, best[j])
    top = Vec(top.reduce_max())
    if not top[0] > neg_inf[F]():
        return 0
    var first = At(Int32.MAX)
    comptime for j in range(4):
        var found = at[j] + iota[I, LANES]()
        first = min(first, best[j].eq(top).select(found, At(Int32.MAX)))
    return Int(first.reduce_min())


def draw(
    row: Pointer[mut=False, Float32, ...],
    count: Int,
    likeliest: Int,
    cut: Float32,
    settings: Settings,
) -> Int:
    """Returns the kept token with the largest sum of scaled logit and noise.

    A sum can only exceed the best one so far when its noise does what is missing, so few noises
    need their logarithms: g > d means u < exp(-d), and log2(u) is not below the line between
    powers of two that its bits spell out. What this leaves out cannot win, so it does not show.

    Args:
        row: Logits, `[count]`.
        count: Number of tokens.
        likeliest: The token with the largest logit, which is finite.
        cut: Least logit that is kept.
        settings: Temperature, min_p, seed and position.

    Returns:
        Its id, the first of equal ones.
    """
    comptime At = SIMD[I, LANES]
    comptime LOW = Vec(neg_inf[F]())
    var top = row[unsafe_offset=likeliest]
    var sharpness = 1 / settings.temperature
    var deepest = neg_inf[F]()
    if settings.min_p > 0:
        deepest = min(log(Vec(settings.min_p))[0], 0)
    # The likeliest token is kept, so its sum is a floor from the start.
    var likely_words = philox4x32[LANES](
        SIMD[L, LANES](likeliest // 4),
        settings.position,
        settings.seed_low,
        settings.seed_high,
    )
    var floor = gumbel(SIMD[U, LANES](likely_words[likeliest % 4]))[0]
    var least = max(deepest, floor - MOST_NOISE)
    var best = LOW
    var at = At(0)
    for i in range(0, count, BLOCK):
        var x = Array[Vec, 4](fill=LOW)
        var some = SIMD[DType.bool, LANES](fill=False)
        comptime for j in range(4):
            if i + j * LANES < count:
                var value = load_or_low(row, i + j * LANES, count)
                var scaled = (value - top) * sharpness
                var kept = value.ge(cut) & scaled.ge(least)
                x[j] = kept.select(scaled, LOW)
                some |= kept
        if not some.reduce_or():
            continue
        var words = philox4x32[LANES](
            SIMD[L, LANES](i // 4) + iota[L, LANES](),
            settings.position,
            settings.seed_low,
            settings.seed_high,
        )
        var near = SIMD[DType.bool, LANES](fill=False)
        comptime for j in range(4):
            var u = uniform(words.slice[LANES, offset=j * LANES]())
            var missing = (x[j] - floor).fma(Vec(LOG2_E), Vec(SLACK))
            near |= log2_below(u).lt(missing)
        if not near.reduce_or():
            continue
        comptime for j in range(4):
            var score = x[j] + gumbel(words.slice[LANES, offset=j * LANES]())
            var larger = score.gt(best)
            best = larger.select(score, best)
            at = larger.select(At(i + j * LANES), at)
        floor = max(floor, best.reduce_max())
        least = max(deepest, floor - MOST_NOISE)
    at += iota[I, LANES]()
    var found = best.eq(best.reduce_max())
    return Int(found.select(at, At(Int32.MAX)).reduce_min())


def choose(
    row: Pointer[mut=False, Float32, ...], count: Int, settings: Settings
) -> Int:
    """Chooses a token of one row whose logits have their edits.

    Args:
        row: Logits, `[count]`.
        count: Number of tokens, at least 1.
        settings: What the row asks for.

    Returns:
        The token's id.
    """
    var likeliest = first_largest(row, count)
    var top = row[unsafe_offset=likeliest]
    if settings.temperature == 0 or not (LOWEST <= top and top < inf[F]()):
        return likeliest
    var cut = LOWEST
    if settings.top_k > 0:
        cut = top_k_cut(row, count, settings.top_k, top)
    if settings.top_p < 1:
        cut = top_p_cut(
            row, count, settings.top_p, cut, top, 1 / settings.temperature
        )
    return draw(row, count, likeliest, cut, settings)


def sample_row(
    edited_row: Pointer[mut=True, Float32, ...],
    row: Pointer[mut=False, Float32, ...],
    count: Int,
    settings: Settings,
    token: Pointer[mut=False, Int32, ...],
    times: Pointer[mut=False, Int32, ...],
    bias: Pointer[mut=False, Float32, ...],
    edits: Int,
    mask: Pointer[mut=False, Int32, ...],
    masked: Bool,
) -> Int:
    """Applies a row's edits and mask to a copy of it and chooses a token.

    Args:
        edited_row: Work space, `[count]`; not touched without edits and mask.
        row: Logits, `[count]`.
        count: Number of tokens, at least 1.
        settings: What the row asks for.
        token: Tokens to edit, distinct, `[edits]`.
        times: How often the text has each, `[edits]`.
        bias: Added to each, `[edits]`.
        edits: Number of edits.
        mask: One bit per token, see `sample_mask.mojo`; not read unless `masked`.
        masked: Whether the row has a mask.

    Returns:
        The token's id.
    """
    if edits == 0 and not masked:
        return choose(row, count, settings)
    if masked:
        copy_allowed(edited_row, row, mask, count)
    else:
        for i in range(0, count - LANES + 1, LANES):
            edited_row.unsafe_store(i, row.unsafe_load[width=LANES](i))
        for i in range(count // LANES * LANES, count):
            edited_row[unsafe_offset=i] = row[unsafe_offset=i]
    for i in range(edits):
        var at = Int(token[unsafe_offset=i])
        if masked and not allows(mask, at):
            continue
        edited_row[unsafe_offset=at] = edited(
            row[unsafe_offset=at],
            bias[unsafe_offset=i],
            times[unsafe_offset=i],
            settings,
        )
    return choose(edited_row, count, settings)
