"""Routing of tokens to experts, GPU kernel: one warp per token.

Same maths as `moe_route.mojo`. The token's choices lie in shared memory; each expert is found by
all lanes together, each over every 32nd choice.
"""

from max.gpu import WARP_SIZE, barrier, block_idx, lane_id
from max.gpu.memory import AddressSpace
from max.gpu.primitives import warp
from std.memory import stack_allocation

from .moe_route import (
    MAX_EXPERTS,
    MAX_GROUPS,
    TAKEN,
    choice_of,
    group_strength,
    sigmoid,
)


@always_inline
def warp_first_largest(
    values: Pointer[mut=False, Float32, ...], count: Int
) -> Int:
    """Returns where the largest value is, the first of equal ones; the same in every lane.

    Args:
        values: At least one above `TAKEN`, `[count]`.
        count: Number of values.

    Returns:
        Its index.
    """
    var best = TAKEN
    var at = Int32(0)
    for i in range(Int(lane_id()), count, WARP_SIZE):
        var value = values[unsafe_offset=i]
        if value > best:
            best = value
            at = Int32(i)
    var offset = WARP_SIZE // 2
    while offset > 0:
        var other = warp.shuffle_xor(best, UInt32(offset))
        var other_at = warp.shuffle_xor(at, UInt32(offset))
        if other > best or (other == best and other_at < at):
            best = other
            at = other_at
        offset //= 2
    return Int(at)


def moe_route_gpu[
    normalize: Bool
](
    chosen: Pointer[Int32, MutAnyOrigin],
    weights: Pointer[Float32, MutAnyOrigin],
    logits: Pointer[Float32, ImmutAnyOrigin],
    bias: Pointer[Float32, ImmutAnyOrigin],
    experts_: Int32,
    count_: Int32,
    groups_: Int32,
    kept_groups: Int32,
    scale: Float32,
):
    """Chooses the experts of one token; grid (tokens), block one warp.

    Parameters:
        normalize: Whether weights are divided by their sum.

    Args:
        chosen: The experts, best first, `[tokens, count]`.
        weights: Their weights, `[tokens, count]`.
        logits: Router outputs, `[tokens, experts]`.
        bias: Choice bias, `[experts]`.
        experts_: Number of experts, at most 1,024.
        count_: Experts per token.
        groups_: Number of groups, at most 64.
        kept_groups: Groups that may be chosen from.
        scale: Factor on the weights.
    """
    comptime F = DType.float32
    var experts = Int(experts_)
    var count = Int(count_)
    var groups = Int(groups_)
    var lane = Int(lane_id())
    var x = logits.unsafe_offset(Int(block_idx.x) * experts)
    var first = Int(block_idx.x) * count
    var choices = stack_allocation[
        MAX_EXPERTS, F, address_space=AddressSpace.SHARED
    ]()
    for e in range(lane, experts, WARP_SIZE):
        choices[unsafe_offset=e] = choice_of(
            sigmoid(x[unsafe_offset=e]), bias[unsafe_offset=e]
        )
    barrier()

    if Int(kept_groups) < groups:
        var size = experts // groups
        var strength = stack_allocation[
            MAX_GROUPS, F, address_space=AddressSpace.SHARED
        ]()
        for g in range(lane, groups, WARP_SIZE):
            strength[unsafe_offset=g] = group_strength(
                choices, g * size, (g + 1) * size
            )
        barrier()
        for _ in range(Int(kept_groups)):
            var at = warp_first_largest(strength, groups)
            barrier()
            if lane == 0:
                strength[unsafe_offset=at] = TAKEN
            barrier()
        for e in range(lane, experts, WARP_SIZE):
            if strength[unsafe_offset=e // size] > TAKEN:  # not a kept group
                choices[unsafe_offset=e] = TAKEN
        barrier()

    var total = Float32(0)
    for j in range(count):
        var at = warp_first_largest(choices, experts)
        barrier()
        var score = sigmoid(x[unsafe_offset=at])
        total += score
        if lane == 0:
            choices[unsafe_offset=at] = TAKEN
            chosen[unsafe_offset=first + j] = Int32(at)
            weights[unsafe_offset=first + j] = score
        barrier()
    var factor = scale / (total + 1.0e-20) if normalize else scale
    for j in range(lane, count, WARP_SIZE):
        weights[unsafe_offset=first + j] *= factor
