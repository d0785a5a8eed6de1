"""Random words as a function of a key and a counter, and Gumbel noise made of them.

Philox4x32-10 turns a counter of four words into four random ones by ten rounds of two 32 x 32 bit
products each, under a key of two words. There is no state: a token's word depends on the seed, its
place in the text and its id alone, whoever draws it and in whatever order.

    u = (word + 0.5) / 2^32;  E = -log(1 - u), exponential;  g = -log(E), Gumbel

The largest of `logit + g` falls on each token with its softmax probability.

See: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; Gumbel 1954, "Statistical
theory of extreme values"; tests/reference/sample.py.
"""

from std.math import log
from std.memory import bitcast

comptime U = DType.uint32
"""Type of random words and of keys."""
comptime L = DType.uint64
"""Type of lanes that hold products of words."""
comptime FIRST_FACTOR = UInt64(0xD2511F53)
"""Factor of the first product of a round."""
comptime SECOND_FACTOR = UInt64(0xCD9E8D57)
"""Factor of the second product."""
comptime FIRST_STEP = UInt32(0x9E3779B9)
"""What a round adds to the key's first word: the golden ratio."""
comptime SECOND_STEP = UInt32(0xBB67AE85)
"""What a round adds to the key's second word: the square root of three, less one."""
comptime TWO_TO_MINUS_32 = Float32(2.3283064365386963e-10)
"""2^-32."""
comptime MOST_NOISE = Float32(22.9)
"""No noise is larger: 33 log(2) = 22.87."""
comptime SERIES_BELOW = Float32(0.0625)
"""Where `-log(1 - u)` is a series: `1 - u` alone has lost the last bits of a small u."""


@always_inline
def philox4x32[
    W: Int
](
    first: SIMD[DType.uint64, W],
    second: UInt32,
    key_low: UInt32,
    key_high: UInt32,
) -> SIMD[U, 4 * W]:
    """Returns four random words for each counter `(first, second, 0, 0)`.

    Words are held in lanes of 64 bits, where their products are, with anything in the upper halves:
    a round is then two products, two shifts and four exclusive ors, and moves no lane.

    Parameters:
        W: Number of counters.

    Args:
        first: First words of the counters.
        second: Second word of all of them.
        key_low: First word of the key.
        key_high: Second word of the key.

    Returns:
        The words of the first counter, those of the second, and so on.
    """
    comptime V = SIMD[L, W]
    comptime LOW = UInt64(0xFFFFFFFF)
    var c0 = first
    var c1 = V(UInt64(second))
    var c2 = V(0)
    var c3 = V(0)
    var k0 = key_low
    var k1 = key_high
    comptime for _ in range(10):
        var p = (c0 & LOW) * FIRST_FACTOR
        var q = (c2 & LOW) * SECOND_FACTOR
        c0 = (q >> 32) ^ c1 ^ UInt64(k0)
        c1 = q
        c2 = (p >> 32) ^ c3 ^ UInt64(k1)
        c3 = p
        k0 += FIRST_STEP
        k1 += SECOND_STEP
    var left = (c0 & LOW) | c1 << 32
    var right = (c2 & LOW) | c3 << 32
    return bitcast[U, 4 * W](left.interleave(right))


@always_inline
def uniform[W: SIMDLength, //](word: SIMD[U, W]) -> SIMD[DType.float32, W]:
    """Returns `u` of random words, between 2^-33 and 1.

    Parameters:
        W: Vector width.

    Args:
        word: The words.

    Returns:
        `(word + 0.5) / 2^32` of each lane; small ones have their full precision.
    """
    return (word.cast[DType.float32]() + 0.5) * TWO_TO_MINUS_32


@always_inline
def log2_below[
    W: SIMDLength, //
](u: SIMD[DType.float32, W]) -> SIMD[DType.float32, W]:
    """Returns a lower bound of log2(u), at most 0.09 below it: chords between powers of two.

    Parameters:
        W: Vector width.

    Args:
        u: Positive and normal.

    Returns:
        The bound of each lane.
    """
    comptime F = DType.float32
    var bits = bitcast[DType.int32, W](u).cast[F]()
    return bits.fma(SIMD[F, W](1.0 / 8388608), SIMD[F, W](-127))


@always_inline
def gumbel[W: SIMDLength, //](word: SIMD[U, W]) -> SIMD[DType.float32, W]:
    """Returns the Gumbel noise of random words, between -3.2 and 22.9.

    Small words make large noise, which decides; `u` and `E` keep their relative precision there.

    Parameters:
        W: Vector width.

    Args:
        word: The words.

    Returns:
        `-log(-log(1 - u))` of each lane.
    """
    comptime F = DType.float32
    comptime V = SIMD[F, W]
    var u = uniform(word)
    var rest = uniform(~word)  # 1 - u
    var series = V(1.0 / 8)
    comptime for i in range(7, 0, -1):
        series = series.fma(u, V(1.0 / Float64(i)))
    return -log(u.lt(SERIES_BELOW).select(series * u, -log(rest)))
