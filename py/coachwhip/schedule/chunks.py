"""Where the chunk of a prompt that runs in a step ends."""

from __future__ import annotations


def chunk_end(
    mode: str, num_computed: int, num_tokens: int, budget: int, block: int, branch: int
) -> int:
    """Returns how many tokens are computed after the step, more than `num_computed`.

    With `align`, chunks end on the checkpoint grid: at the branch point, at the deepest grid point
    that a repetition of these tokens could hit, else at the last one that the budget reaches. A
    budget that reaches none is used all the same, so a request never waits for a larger one.

    Args:
        mode: The cache mode.
        num_computed: Tokens already computed.
        num_tokens: Tokens to compute in the end.
        budget: Most rows, at least 1.
        block: The checkpoint grid in tokens.
        branch: Grid point at which others with this prefix part; 0 if none is known.
    """
    end = min(num_tokens, num_computed + budget)
    if mode != "align":
        return end
    stops = [s for s in (branch, (num_tokens - 1) // block * block) if num_computed < s < end]
    if stops:
        return min(stops)
    on_grid = end // block * block
    return on_grid if end < num_tokens and on_grid > num_computed else end
