"""Routing of tokens to experts, CPU kernel.

    score = sigmoid(logits);  choice = score + bias
    with groups: only the best groups (sum of their two best choices) may be chosen from
    experts = the k largest choices;  weight = score[expert] (/ sum of them) * scale

The bias takes part in the choice only. Ties go to the lower index. All float32. Choices are
computed once per token; what is taken, or lies in a dropped group, is marked with a value that no
choice has. A choice that is no number counts as the lowest, so the experts found always exist.

See: DeepSeek-AI 2024, arXiv 2412.19437 (bias for balance); tests/reference/moe.py.
"""

from std.math import align_up, exp, iota
from std.memory import stack_allocation

comptime LANES = 16
"""Values that one vector holds."""
comptime MAX_EXPERTS = 1024
"""Most experts: their scores and choices fit a thread's stack, or a block's shared memory."""
comptime MAX_GROUPS = 64
"""Most expert groups."""
comptime TAKEN = Float32(-3.0e38)
"""Marks what cannot be chosen any more; below every choice and every sum of two."""
comptime LOWEST = Float32(-1.0e38)
"""The lowest choice; smaller ones, and NaN, are raised to it."""


@always_inline
def sigmoid[
    W: SIMDLength, //
](x: SIMD[DType.float32, W]) -> SIMD[DType.float32, W]:
    """Returns `1 / (1 + exp(-x))`.

    Parameters:
        W: Vector width.

    Args:
        x: The argument.

    Returns:
        The value of each lane, between 0 and 1; NaN for NaN, which `exp` alone would lose.
    """
    return x.eq(x).select(1 / (1 + exp(-x)), x)


@always_inline
def choice_of[
    W: SIMDLength, //
](score: SIMD[DType.float32, W], bias: SIMD[DType.float32, W]) -> SIMD[
    DType.float32, W
]:
    """Returns what experts are ranked by.

    Parameters:
        W: Vector width.

    Args:
        score: Their scores.
        bias: Their biases.

    Returns:
        The sum of both, at least `LOWEST`.
    """
    var choice = score + bias
    return choice.gt(LOWEST).select(choice, SIMD[DType.float32, W](LOWEST))


@always_inline
def group_strength(
    choices: Pointer[mut=False, Float32, ...], begin: Int, end: Int
) -> Float32:
    """Returns the sum of the two largest choices of a group.

    Args:
        choices: Choices of the token, `[experts]`.
        begin: First expert of the group.
        end: First expert past it.

    Returns:
        The sum; a single expert counts alone.
    """
    var best = TAKEN
    var second = TAKEN
    for e in range(begin, end):
        var choice = choices[unsafe_offset=e]
        if choice > best:
            second = best
            best = choice
        elif choice > second:
            second = choice
    return best + second if end - begin > 1 else best


@always_inline
def first_largest(values: Pointer[mut=False, Float32, ...], count: Int) -> Int:
    """Returns where the largest value is, the first of equal ones.

    Args:
        values: At least one above `TAKEN`, `[count]`.
        count: Number of values, a multiple of 16.

    Returns:
        Its index.
    """
    comptime I = DType.int32
    var best = SIMD[DType.float32, LANES](TAKEN)
    var at = SIMD[I, LANES](0)
    for i in range(0, count, LANES):
        var value = values.unsafe_load[width=LANES](i)
        var larger = value.gt(best)
        best = larger.select(value, best)
        at = larger.select(SIMD[I, LANES](i), at)
    at += iota[I, LANES]()
    var top = SIMD[DType.float32, LANES](best.reduce_max())
    return Int(best.eq(top).select(at, SIMD[I, LANES](Int32.MAX)).reduce_min())


def route_token(
    chosen: Pointer[mut=True, Int32, ...],
    weights: Pointer[mut=True, Float32, ...],
    logits: Pointer[mut=False, Float32, ...],
    bias: Pointer[mut=False, Float32, ...],
    experts: Int,
    count: Int,
    groups: Int,
    kept_groups: Int,
    normalize: Bool,
    scale: Float32,
):
    """Chooses the experts of one token and weights them.

    Args:
        chosen: The experts, best first, `[count]`.
        weights: Their weights, `[count]`.
        logits: Router outputs, `[experts]`.
        bias: Choice bias, `[experts]`.
        experts: Number of experts, at most 1,024.
        count: Experts per token.
        groups: Number of groups, a divisor of `experts`, at most 64.
        kept_groups: Groups that may be chosen from.
        normalize: Whether weights are divided by their sum.
        scale: Factor on the weights.
    """
    comptime F = DType.float32
    var scores = stack_allocation[MAX_EXPERTS, F, alignment=64]()
    var choices = stack_allocation[MAX_EXPERTS, F, alignment=64]()
    var padded = align_up(experts, LANES)
    for i in range(0, experts, LANES):
        var x = SIMD[F, LANES](0)
        var b = SIMD[F, LANES](0)
        if i + LANES <= experts:
            x = logits.unsafe_load[width=LANES](i)
            b = bias.unsafe_load[width=LANES](i)
        else:
            for k in range(experts - i):
                x[k] = logits[unsafe_offset=i + k]
                b[k] = bias[unsafe_offset=i + k]
        var score = sigmoid(x)
        scores.unsafe_store(i, score)
        choices.unsafe_store(i, choice_of(score, b))
    for e in range(experts, padded):
        choices[unsafe_offset=e] = TAKEN

    if kept_groups < groups:
        var size = experts // groups
        var strength = stack_allocation[MAX_GROUPS, F, alignment=64]()
        for g in range(MAX_GROUPS):
            strength[unsafe_offset=g] = (
                group_strength(choices, g * size, (g + 1) * size) if g
                < groups else TAKEN
            )
        for _ in range(kept_groups):
            strength[unsafe_offset=first_largest(strength, MAX_GROUPS)] = TAKEN
        for g in range(groups):
            if strength[unsafe_offset=g] > TAKEN:  # not among the kept ones
                for e in range(g * size, (g + 1) * size):
                    choices[unsafe_offset=e] = TAKEN

    var total = Float32(0)
    for j in range(count):
        var at = first_largest(choices, padded)
        choices[unsafe_offset=at] = TAKEN
        chosen[unsafe_offset=j] = Int32(at)
        weights[unsafe_offset=j] = scores[unsafe_offset=at]
        total += scores[unsafe_offset=at]
    var factor = scale / (total + 1.0e-20) if normalize else scale
    for j in range(count):
        weights[unsafe_offset=j] = weights[unsafe_offset=j] * factor
