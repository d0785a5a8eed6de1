"""Chooses a token from each row of logits, GPU kernel: one block per row.

Same maths as `sample.mojo`. The least logits that top-k and top-p keep are found two bits at a
time, from the highest bits of their keys down: the bits are the largest with which what lies above
still reaches the wanted count or mass. Counts and masses are integers, so no sum depends on the order of threads.
"""

from max.gpu import WARP_SIZE, barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.memory import AddressSpace
from max.gpu.primitives import warp
from std.math import ceil, log
from std.memory import stack_allocation
from std.utils.numerics import inf, neg_inf

from .philox import gumbel, philox4x32
from .sample import Settings, edited, settings_of
from .sample_mask import allows
from .sample_threshold import LOWEST, key_of, mass_of, value_of

comptime F = DType.float32
"""Type of logits, scores and noise."""
comptime I = DType.int32
"""Type of token ids."""
comptime M = DType.int64
"""Type of counts and masses."""
comptime THREADS = 512
"""Threads of a block."""
comptime WARPS = THREADS // WARP_SIZE
"""Warps of a block."""


@always_inline
def block_sum(value: Scalar[M]) -> Scalar[M]:
    """Returns the sum over all threads of the block, the same in each.

    Args:
        value: The thread's own summand.

    Returns:
        The sum.
    """
    var parts = stack_allocation[WARPS, M, address_space=AddressSpace.SHARED]()
    var sum = value
    var offset = WARP_SIZE // 2
    while offset > 0:
        sum += warp.shuffle_xor(sum, UInt32(offset))
        offset //= 2
    barrier()  # everyone has read the parts of the sum before
    if lane_id() == 0:
        parts[unsafe_offset=Int(warp_id())] = sum
    barrier()
    var total = Scalar[M](0)
    comptime for w in range(WARPS):
        total += parts[unsafe_offset=w]
    return total


@always_inline
def block_first_largest(value: Float32, at: Int32) -> Int32:
    """Returns the index that goes with the largest value of the block, the same in each thread.

    Args:
        value: The thread's largest value; not NaN.
        at: Its index.

    Returns:
        The index; the lowest of equal values.
    """
    var values = stack_allocation[WARPS, F, address_space=AddressSpace.SHARED]()
    var places = stack_allocation[WARPS, I, address_space=AddressSpace.SHARED]()
    var best = value
    var found = at
    var offset = WARP_SIZE // 2
    while offset > 0:
        var other = warp.shuffle_xor(best, UInt32(offset))
        var other_at = warp.shuffle_xor(found, UInt32(offset))
        if other > best or (other == best and other_at < found):
            best = other
            found = other_at
        offset //= 2
    barrier()  # everyone has read the results of the search before
    if lane_id() == 0:
        values[unsafe_offset=Int(warp_id())] = best
        places[unsafe_offset=Int(warp_id())] = found
    barrier()
    best = values[unsafe_offset=0]
    found = places[unsafe_offset=0]
    comptime for w in range(1, WARPS):
        var other = values[unsafe_offset=w]
        var other_at = places[unsafe_offset=w]
        if other > best or (other == best and other_at < found):
            best = other
            found = other_at
    return found


@always_inline
def first_largest_gpu(row: Pointer[mut=False, Float32, ...], count: Int) -> Int:
    """Returns where the largest value of a row is, the first of equal ones.

    Args:
        row: Logits, `[count]`.
        count: Number of tokens.

    Returns:
        Its index; 0 when there is no number above -inf.
    """
    var best = neg_inf[F]()
    var at = Int32(0)
    for i in range(Int(thread_idx.x), count, THREADS):
        var value = row[unsafe_offset=i]
        if value > best:
            best = value
            at = Int32(i)
    return Int(block_first_largest(best, at))


@always_inline
def cut_gpu[
    by_mass: Bool
](
    row: Pointer[mut=False, Float32, ...],
    count: Int,
    low: Float32,
    top: Float32,
    sharpness: Float32,
    target: Scalar[M],
) -> Float32:
    """Returns the largest value such that the tokens from it on weigh at least `target`.

    Parameters:
        by_mass: Whether a token weighs its mass, or 1.

    Args:
        row: Logits, `[count]`.
        count: Number of tokens.
        low: Least logit that counts.
        top: The largest logit.
        sharpness: 1 / temperature.
        target: The weight.

    Returns:
        The value, `low` at least.
    """
    var first = key_of(low)
    var last = key_of(top)
    var found = UInt32(0)
    for step in range(16):
        var shift = UInt32(30 - 2 * step)
        # Weights of what lies above each value that the next two bits can make.
        var above = Array[Scalar[M], 3](fill=0)
        for i in range(Int(thread_idx.x), count, THREADS):
            var value = row[unsafe_offset=i]
            var key = key_of(value)
            if key < max(found, first) or key > last:
                continue
            var weight = Scalar[M](1)
            comptime if by_mass:
                weight = mass_of((value - top) * sharpness)
            var bits = (key - found) >> shift
            comptime for j in range(3):
                if bits > UInt32(j):
                    above[j] += weight
        var bits = UInt32(0)
        comptime for j in range(3):
            if block_sum(above[j]) >= target:
                bits = UInt32(j + 1)
        found |= bits << shift
    return value_of(max(found, first))


@always_inline
def draw_gpu(
    row: Pointer[mut=False, Float32, ...],
    count: Int,
    top: Float32,
    cut: Float32,
    settings: Settings,
) -> Int:
    """Returns the kept token with the largest sum of scaled logit and noise.

    Args:
        row: Logits, `[count]`.
        count: Number of tokens.
        top: The largest logit, finite.
        cut: Least logit that is kept.
        settings: Temperature, min_p, seed and position.

    Returns:
        Its id, the first of equal ones.
    """
    var sharpness = 1 / settings.temperature
    var deepest = neg_inf[F]()
    if settings.min_p > 0:
        deepest = min(log(settings.min_p), 0)
    var best = neg_inf[F]()
    var at = Int32(0)
    for i in range(4 * Int(thread_idx.x), count, 4 * THREADS):
        var words = philox4x32[1](
            UInt64(i // 4),
            settings.position,
            settings.seed_low,
            settings.seed_high,
        )
        comptime for j in range(4):
            if i + j < count:
                var value = row[unsafe_offset=i + j]
                var x = (value - top) * sharpness
                if value >= cut and x >= deepest:
                    var score = x + gumbel(words[j])
                    if score > best:
                        best = score
                        at = Int32(i + j)
    return Int(block_first_largest(best, at))


@always_inline
def choose_gpu(
    row: Pointer[mut=False, Float32, ...], count: Int, settings: Settings
) -> Int:
    """Chooses a token of one row whose logits have their edits.

    Args:
        row: Logits, `[count]`.
        count: Number of tokens, at least 1.
        settings: What the row asks for.

    Returns:
        The token's id, the same in every thread.
    """
    var likeliest = first_largest_gpu(row, count)
    var top = row[unsafe_offset=likeliest]
    if settings.temperature == 0 or not (LOWEST <= top and top < inf[F]()):
        return likeliest
    var sharpness = 1 / settings.temperature
    var cut = LOWEST
    if 0 < settings.top_k < count:
        cut = cut_gpu[False](
            row, count, cut, top, sharpness, Scalar[M](settings.top_k)
        )
    if settings.top_p < 1:
        var mass = Scalar[M](0)
        for i in range(Int(thread_idx.x), count, THREADS):
            var value = row[unsafe_offset=i]
            if value >= cut:
                mass += mass_of((value - top) * sharpness)
        var share = ceil(
            Float64(settings.top_p) * block_sum(mass).cast[DType.float64]()
        )
        cut = cut_gpu[True](
            row, count, cut, top, sharpness, max(share.cast[M](), 1)
        )
    return draw_gpu(row, count, top, cut, settings)


def sample_gpu(
    tokens: Pointer[Int64, MutAnyOrigin],
    space: Pointer[Float32, MutAnyOrigin],
    logits: Pointer[Float32, ImmutAnyOrigin],
    real: Pointer[Float32, ImmutAnyOrigin],
    whole: Pointer[Int32, ImmutAnyOrigin],
    edit_start: Pointer[Int32, ImmutAnyOrigin],
    edit_token: Pointer[Int32, ImmutAnyOrigin],
    edit_count: Pointer[Int32, ImmutAnyOrigin],
    edit_bias: Pointer[Float32, ImmutAnyOrigin],
    mask_row: Pointer[Int32, ImmutAnyOrigin],
    masks: Pointer[Int32, ImmutAnyOrigin],
    vocab: Int32,
    mask_words: Int32,
):
    """Chooses the token of one row; grid (rows), block THREADS.

    Args:
        tokens: The tokens, `[rows]`.
        space: Work space for rows with edits or a mask, `[rows, vocab]`.
        logits: The logits, `[rows, vocab]`.
        real: Temperature, top_p, min_p, repetition, presence and frequency penalty, `[rows, 6]`.
        whole: Value of top_k, the two words of the seed, position, `[rows, 4]`.
        edit_start: First edit of each row, `[rows + 1]`.
        edit_token: Tokens to edit, distinct within a row, `[edits]`.
        edit_count: How often the text has each; 0: the prompt alone, -1: neither, `[edits]`.
        edit_bias: Added to each logit, `[edits]`.
        mask_row: Which mask each row has; -1: none, `[rows]`.
        masks: One bit per token, `[masks, mask_words]`.
        vocab: Values per row.
        mask_words: Words per mask.
    """
    var r = Int(block_idx.x)
    var me = Int(thread_idx.x)
    var count = Int(vocab)
    var row = logits.unsafe_offset(r * count)
    var settings = settings_of(
        real.unsafe_offset(r * 6), whole.unsafe_offset(r * 4)
    )
    var begin = Int(edit_start[unsafe_offset=r])
    var end = Int(edit_start[unsafe_offset=r + 1])
    var which = Int(mask_row[unsafe_offset=r])
    var masked = which >= 0
    var mask = masks.unsafe_offset(max(which, 0) * Int(mask_words))
    var token = 0
    if begin == end and not masked:
        token = choose_gpu(row, count, settings)
    else:
        var mine = space.unsafe_offset(r * count)
        for i in range(me, count, THREADS):
            var kept = not masked or allows(mask, i)
            mine[unsafe_offset=i] = row[unsafe_offset=i] if kept else neg_inf[
                F
            ]()
        barrier()
        for i in range(begin + me, end, THREADS):
            var at = Int(edit_token[unsafe_offset=i])
            if masked and not allows(mask, at):
                continue
            mine[unsafe_offset=at] = edited(
                row[unsafe_offset=at],
                edit_bias[unsafe_offset=i],
                edit_count[unsafe_offset=i],
                settings,
            )
        barrier()
        token = choose_gpu(mine, count, settings)
    if me == 0:
        tokens[unsafe_offset=r] = Int64(token)
