"""Routing of tokens to experts, GPU kernel: one thread per token.

Same maths as `moe_route.mojo`, whose function each thread calls.
"""

from max.gpu import block_dim, block_idx, thread_idx

from .moe_route import route_token


def moe_route_gpu[
    normalize: Bool
](
    chosen: Pointer[Int32, MutAnyOrigin],
    weights: Pointer[Float32, MutAnyOrigin],
    logits: Pointer[Float32, ImmutAnyOrigin],
    bias: Pointer[Float32, ImmutAnyOrigin],
    tokens: Int32,
    experts: Int32,
    count: Int32,
    groups: Int32,
    kept_groups: Int32,
    scale: Float32,
):
    """Chooses the experts of one token; grid (token blocks).

    Parameters:
        normalize: Whether weights are divided by their sum.

    Args:
        chosen: The experts, best first, `[tokens, count]`.
        weights: Their weights, `[tokens, count]`.
        logits: Router outputs, `[tokens, experts]`.
        bias: Choice bias, `[experts]`.
        tokens: Number of tokens.
        experts: Number of experts.
        count: Experts per token.
        groups: Number of groups.
        kept_groups: Groups that may be chosen from.
        scale: Factor on the weights.
    """
    var t = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    if t >= Int(tokens):
        return
    route_token(
        chosen.unsafe_offset(t * Int(count)),
        weights.unsafe_offset(t * Int(count)),
        logits.unsafe_offset(t * Int(experts)),
        bias,
        Int(experts),
        Int(count),
        Int(groups),
        Int(kept_groups),
        normalize,
        scale,
    )
