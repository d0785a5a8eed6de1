"""Which tokens top-k and top-p keep: the least logit that a row keeps, CPU kernel.

Both filters keep the largest tokens, so each is one number: the smallest logit it keeps. Equal
logits stay or go together. Nothing is sorted: tokens are counted, or their masses added, in bins
of their logits; the bin in which the wanted count or mass is reached is split into finer bins,
down to a single float value.

A mass is exp(x) * 2^43 as an integer, so sums of masses are exact and do not depend on order.

See: tests/reference/sample.py.
"""

from std.math import ceil, ceildiv, exp, iota
from std.memory import bitcast, stack_allocation
from std.utils.numerics import neg_inf

comptime LANES = 16
"""Values that one vector holds."""
comptime F = DType.float32
"""Type of logits, scores and noise."""
comptime U = DType.uint32
"""Type of keys: integers in the order of the floats."""
comptime M = DType.int64
"""Type of counts and masses."""
comptime Vec = SIMD[F, LANES]
"""Logits of 16 tokens."""
comptime LOWEST = Float32(-3.4028234663852886e38)
"""The least finite logit; what lies below, -inf, is never kept, and NaN neither."""
comptime BINS = 2048
"""Bins of one pass over a row; they fit the L1 cache."""
comptime BINS_PER_NAT = Float32(64)
"""Bins that masses within a factor of e fall into; the first holds all below 32 nats."""
comptime MAX_VOCAB = 524288
"""Most tokens, so that their masses do not overflow."""
comptime ONE_MASS = Float32(8796093022208.0)
"""Mass of the largest token, 2^43."""
comptime FEW_MAXIMA = 512
"""Maxima that top-k looks at for small k, about."""
comptime MOST_MAXIMA = 4096
"""Most maxima that top-k looks at."""


@always_inline
def load_or_low(
    row: Pointer[mut=False, Float32, ...], at: Int, count: Int
) -> Vec:
    """Loads 16 values of a row, -inf for those past its end.

    Args:
        row: The row, `[count]`.
        at: First value, a multiple of 16 below `count`.
        count: Values of the row.

    Returns:
        The values.
    """
    if at + LANES <= count:
        return row.unsafe_load[width=LANES](at)
    var value = Vec(neg_inf[F]())
    for i in range(count - at):
        value[i] = row[unsafe_offset=at + i]
    return value


@always_inline
def key_of[W: SIMDLength, //](value: SIMD[F, W]) -> SIMD[U, W]:
    """Returns integers in the order of the floats; NaN lies outside all others, -0 becomes 0.

    Parameters:
        W: Vector width.

    Args:
        value: The floats.

    Returns:
        The keys.
    """
    var bits = bitcast[U, W](value + 0)
    return bits.ge(0x80000000).select(~bits, bits | 0x80000000)


@always_inline
def value_of(key: UInt32) -> Float32:
    """Returns the float of a key.

    Args:
        key: The key.

    Returns:
        The float.
    """
    return bitcast[F, 1](key & 0x7FFFFFFF if key >= 0x80000000 else ~key)


@always_inline
def mass_of[W: SIMDLength, //](x: SIMD[F, W]) -> SIMD[M, W]:
    """Returns the mass of tokens that lie `-x` nats below the largest.

    Parameters:
        W: Vector width.

    Args:
        x: At most 0.

    Returns:
        `exp(x)` in units of 2^-43.
    """
    return (exp(x) * ONE_MASS).cast[M]()


@always_inline
def bin_of[W: SIMDLength, //](x: SIMD[F, W]) -> SIMD[DType.int32, W]:
    """Returns the bin of tokens that lie `-x` nats below the largest.

    Parameters:
        W: Vector width.

    Args:
        x: At most 0; may be -inf.

    Returns:
        The last bin for 0, the first for all that lie 32 nats below or more.
    """
    comptime LAST = Float32(BINS - 1)
    var bin = x.fma(SIMD[F, W](BINS_PER_NAT), SIMD[F, W](LAST))
    return max(bin, SIMD[F, W](0)).cast[DType.int32]()


def reached(
    bins: Pointer[mut=False, Scalar[M], ...], mut target: Scalar[M], last: Int
) -> Int:
    """Returns the bin in which the weight of the largest tokens reaches a target.

    Args:
        bins: Weights, `[last + 1]`, larger tokens in later bins.
        target: The target; what larger bins hold is taken off it.
        last: The last bin.

    Returns:
        The bin; the first when all of them are too light.
    """
    for bin in range(last, 0, -1):
        if bins[unsafe_offset=bin] >= target:
            return bin
        target -= bins[unsafe_offset=bin]
    return 0


def split[
    by_mass: Bool
](
    row: Pointer[mut=False, Float32, ...],
    count: Int,
    low: Float32,
    high: Float32,
    target: Scalar[M],
    top: Float32,
    sharpness: Float32,
) -> Float32:
    """Returns the largest value such that the tokens from it up to `high` weigh at least `target`.

    Parameters:
        by_mass: Whether a token weighs its mass, or 1.

    Args:
        row: Logits, `[count]`.
        count: Number of tokens.
        low: Least value that may be the one.
        high: Largest value that may be the one.
        target: The weight.
        top: The row's largest logit.
        sharpness: 1 / temperature.

    Returns:
        The value; `low` when all of them are too light.
    """
    comptime SPAN = UInt32(BINS)
    var bins = stack_allocation[BINS, M, alignment=64]()
    var left = target
    var first = key_of(low)
    var last = key_of(high)
    while first < last:
        var shift = UInt32(0)
        while (last - first) >> shift >= SPAN:
            shift += 1
        for i in range(0, BINS, LANES):
            bins.unsafe_store(i, SIMD[M, LANES](0))
        for i in range(0, count, LANES):
            var value = load_or_low(row, i, count)
            var key = key_of(value)
            var inside = key.ge(first) & key.le(last)
            if not inside.reduce_or():
                continue
            # Lanes outside add nothing, to bins apart so that none waits for another.
            var bin = inside.select((key - first) >> shift, iota[U, LANES]())
            var weight = SIMD[M, LANES](1)
            comptime if by_mass:
                weight = mass_of((value - top) * sharpness)
            weight = inside.select(weight, 0)
            comptime for j in range(LANES):
                bins[unsafe_offset=Int(bin[j] & (BINS - 1))] += weight[j]
        var bin = UInt32(reached(bins, left, Int((last - first) >> shift)))
        first += bin << shift
        last = min(last, first + ((UInt32(1) << shift) - 1))
    return value_of(first)


def top_k_cut(
    row: Pointer[mut=False, Float32, ...], count: Int, k: Int, top: Float32
) -> Float32:
    """Returns the k-th largest logit of a row.

    The k-th largest of the maxima of any groups of tokens is a lower bound of it, and few tokens
    lie above. Here a group is what one lane meets in a few vectors.

    Args:
        row: Logits, `[count]`.
        count: Number of tokens.
        k: At least 1.
        top: The row's largest logit.

    Returns:
        The logit; `LOWEST` when no more than k can be kept at all.
    """
    if k >= count:
        return LOWEST
    var low = LOWEST
    # Vectors under one maximum: some maxima more than k leave few tokens above the k-th.
    var depth = ceildiv(count, min(max(4 * k, FEW_MAXIMA), MOST_MAXIMA))
    var step = depth * LANES
    var maxima = ceildiv(count, step) * LANES
    if k <= maxima:
        var keys = stack_allocation[MOST_MAXIMA + LANES, U, alignment=64]()
        for g in range(0, maxima, LANES):
            var most = Vec(neg_inf[F]())
            for i in range(g * depth, min(g * depth + step, count), LANES):
                var value = load_or_low(row, i, count)
                most = value.gt(most).select(value, most)
            keys.unsafe_store(g, key_of(most))
        var found = UInt32(0)
        for bit in range(31, -1, -1):
            var tried = found | UInt32(1) << UInt32(bit)
            var above = SIMD[U, LANES](0)
            for g in range(0, maxima, LANES):
                above += keys.unsafe_load[width=LANES](g).ge(tried).cast[U]()
            if Int(above.reduce_add()) >= k:
                found = tried
        low = max(low, value_of(found))
    return split[False](row, count, low, top, Scalar[M](k), top, 1)


def top_p_cut(
    row: Pointer[mut=False, Float32, ...],
    count: Int,
    p: Float32,
    low: Float32,
    top: Float32,
    sharpness: Float32,
) -> Float32:
    """Returns the smallest logit of the fewest largest tokens that have a share of the mass.

    Args:
        row: Logits, `[count]`.
        count: Number of tokens.
        p: The share, below 1.
        low: Least logit that is kept so far; what is below has no mass.
        top: The row's largest logit.
        sharpness: 1 / temperature.

    Returns:
        The logit, `top` at most.
    """
    var bins = stack_allocation[BINS, M, alignment=64]()
    for i in range(0, BINS, LANES):
        bins.unsafe_store(i, SIMD[M, LANES](0))
    for i in range(0, count, LANES):
        var value = load_or_low(row, i, count)
        var inside = value.ge(low)
        if not inside.reduce_or():
            continue
        var x = inside.select((value - top) * sharpness, 0)
        var bin = inside.select(bin_of(x), iota[DType.int32, LANES]())
        var mass = inside.select(mass_of(x), 0)
        comptime for j in range(LANES):
            bins[unsafe_offset=Int(bin[j] & (BINS - 1))] += mass[j]
    var total = SIMD[M, LANES](0)
    for i in range(0, BINS, LANES):
        total += bins.unsafe_load[width=LANES](i)
    var share = ceil(Float64(p) * total.reduce_add().cast[DType.float64]())
    var target = max(share.cast[M](), 1)
    var bin = Int32(reached(bins, target, BINS - 1))

    # The values of that bin, between which the wanted one lies.
    var least = Vec(top)
    var most = Vec(low)
    for i in range(0, count, LANES):
        var value = load_or_low(row, i, count)
        var x = value.ge(low).select((value - top) * sharpness, -1)
        var inside = value.ge(low) & bin_of(x).eq(bin)
        least = min(least, inside.select(value, least))
        most = max(most, inside.select(value, most))
    return split[True](
        row,
        count,
        least.reduce_min(),
        most.reduce_max(),
        target,
        top,
        sharpness,
    )
