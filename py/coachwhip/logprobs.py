"""Log probabilities of a token and of the most likely ones."""

from __future__ import annotations

import numpy as np


def top_logprobs(logits: np.ndarray, token: int, count: int) -> dict[int, float]:
    """Returns token id -> natural log probability, most likely first.

    Args:
        logits: [vocab] float32.
        token: The generated token, always among the result.
        count: How many of the most likely tokens to return.

    Returns:
        `count` or, when the generated token is not among those, `count + 1` entries. The
        normaliser is summed in float64, so that it does not depend on an order of summation.
    """
    top = float(logits.max())
    log_total = top + float(np.log(np.exp(logits.astype(np.float64) - top).sum()))
    likely: list[int] = []
    if count:
        least = np.partition(logits, -min(count, len(logits)))[-min(count, len(logits))]
        found = np.flatnonzero(logits >= least)
        # Ties go to the lower id, as in the greedy choice.
        likely = found[np.argsort(-logits[found], kind="stable")][:count].tolist()
    if token not in likely:
        likely.append(token)
    return {i: float(logits[i]) - log_total for i in likely}
