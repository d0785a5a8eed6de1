"""Routing of tokens to experts, CPU kernel.

    score = sigmoid(logits);  choice = score + bias
    with groups: only the best groups (sum of their two best choices) may be chosen from
    experts = the k largest choices;  weight = score[expert] (/ sum of them) * scale

The bias takes part in the choice only. Ties go to the lower index. All float32.

See: DeepSeek-AI 2024, arXiv 2412.19437 (bias for balance); tests/reference/moe.py.
"""

from std.math import exp

comptime MAX_GROUPS = 64
"""Most expert groups."""
comptime LOWEST = Float32(-3.0e38)
"""Below every choice."""


@always_inline
def sigmoid(x: Float32) -> Float32:
    """Returns `1 / (1 + exp(-x))`.

    Args:
        x: The argument.

    Returns:
        The value, between 0 and 1.
    """
    return 1 / (1 + exp(-x))


@always_inline
def group_score(
    logits: Pointer[mut=False, Float32, ...],
    bias: Pointer[mut=False, Float32, ...],
    begin: Int,
    end: Int,
) -> Float32:
    """Returns the sum of the two largest choices of a group.

    Args:
        logits: Router outputs of the token, `[experts]`.
        bias: Choice bias, `[experts]`.
        begin: First expert of the group.
        end: First expert past it.

    Returns:
        The sum; a single expert counts alone.
    """
    var best = LOWEST
    var second = LOWEST
    for e in range(begin, end):
        var choice = sigmoid(logits[unsafe_offset=e]) + bias[unsafe_offset=e]
        if choice > best:
            second = best
            best = choice
        elif choice > second:
            second = choice
    return best + second if end - begin > 1 else best


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
        experts: Number of experts.
        count: Experts per token.
        groups: Number of groups, a divisor of `experts`, at most 64.
        kept_groups: Groups that may be chosen from.
        normalize: Whether weights are divided by their sum.
        scale: Factor on the weights.
    """
    var size = experts // groups
    var kept = UInt64(0)
    if kept_groups < groups:
        for _ in range(kept_groups):
            var best = LOWEST
            var at = -1
            for g in range(groups):
                if (kept >> UInt64(g)) & 1 == 0:
                    var score = group_score(
                        logits, bias, g * size, (g + 1) * size
                    )
                    if at < 0 or score > best:
                        best = score
                        at = g
            kept |= UInt64(1) << UInt64(at)
    else:
        kept = ~UInt64(0)
    var total = Float32(0)
    for j in range(count):
        var best = LOWEST
        var at = -1
        for e in range(experts):
            if (kept >> UInt64(e // size)) & 1 == 0:
                continue
            var taken = False
            for i in range(j):
                if Int(chosen[unsafe_offset=i]) == e:
                    taken = True
            if taken:
                continue
            var choice = (
                sigmoid(logits[unsafe_offset=e]) + bias[unsafe_offset=e]
            )
            if at < 0 or choice > best:
                best = choice
                at = e
        chosen[unsafe_offset=j] = Int32(at)
        var weight = sigmoid(logits[unsafe_offset=at])
        weights[unsafe_offset=j] = weight
        total += weight
    var factor = scale / (total + 1.0e-20) if normalize else scale
    for j in range(count):
        weights[unsafe_offset=j] = weights[unsafe_offset=j] * factor
