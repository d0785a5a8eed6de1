"""Sampling of one row by sorting, in float64, and the random words of Philox4x32-10.

A filter keeps a token by what is larger than it: top-k where fewer than k tokens are, top-p where
their share of the mass is below p. So equal logits stay or go together.

The words and constants of Philox are those of Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3".
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Row:
    """What one row asks for; `edits` are (token, times in the text or -1, bias), `allowed` the only
    tokens that may be chosen, or None."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    top_k: int = 0
    seed: int = 0
    position: int = 0
    edits: tuple[tuple[int, int, float], ...] = field(default=())
    allowed: frozenset[int] | None = None


def philox4x32(counter: tuple, key: tuple[int, int]) -> tuple:
    """Returns the four random words of a counter of four words, ten rounds.

    Words are integers, or uint64 arrays of many counters' words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p, q = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = q >> 32 ^ c1 ^ k0, q & WORD, p >> 32 ^ c3 ^ k1, p & WORD
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return c0, c1, c2, c3


def words(row: Row, vocab: int) -> NDArray:
    """Returns the random word of each token."""
    key = row.seed & WORD, row.seed >> 32 & WORD
    first = np.arange(-(-vocab // 4), dtype=np.uint64)
    return np.stack(philox4x32((first, row.position, 0, 0), key), axis=1).reshape(-1)[:vocab]


def noise(row: Row, vocab: int) -> NDArray:
    """Returns the Gumbel noise of each token, in float64."""
    return -np.log(-np.log1p(-(words(row, vocab) + 0.5) / 2.0**32))


def edited(logits: NDArray, row: Row) -> NDArray:
    """Returns float32 logits with the row's biases and penalties, -inf for what is not allowed."""
    out = np.array(logits, np.float32)
    for token, times, bias in row.edits:
        value = out[token] + np.float32(bias)
        if times >= 0:
            penalty = np.float32(row.repetition)
            value = value / penalty if value > 0 else value * penalty
            value = value - np.float32(row.frequency) * np.float32(times)
            if times > 0:
                value = value - np.float32(row.presence)
        out[token] = value
    if row.allowed is not None:
        out[[token not in row.allowed for token in range(len(out))]] = -np.inf
    return out


def above(logits: NDArray, weights: NDArray) -> NDArray:
    """Returns what all tokens with larger logits weigh, for each token."""
    order = np.argsort(-logits, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(weights[order])])
    # Equal logits begin where the first of them does.
    first = np.searchsorted(-logits[order], -logits, side="left")
    return before[first]


def kept(logits: NDArray, row: Row, slack: float = 0.0) -> NDArray:
    """Returns which tokens the filters keep, as booleans.

    Args:
        logits: Edited logits, [vocab].
        row: What is asked for.
        slack: Shares and probabilities may miss their limits by this; negative: must clear them.
    """
    logits = np.asarray(logits, np.float64)
    keep = np.isfinite(logits)
    if row.top_k > 0:
        keep &= above(logits, np.ones(len(logits))) < row.top_k
    x = (logits - logits.max()) / float(np.float32(row.temperature))
    mass = np.where(keep, np.exp(x), 0.0)
    largest = logits == logits.max()
    if row.top_p < 1:
        share = above(logits, mass) / mass.sum()
        keep &= (share < float(np.float32(row.top_p)) + slack) | largest
    if row.min_p > 0:
        keep &= (np.exp(x) >= float(np.float32(row.min_p)) * (1 - slack)) | largest
    return keep


def scores(logits: NDArray, row: Row) -> NDArray:
    """Returns scaled logits plus noise, in float64."""
    logits = np.asarray(logits, np.float64)
    temperature = float(np.float32(row.temperature))
    return (logits - logits.max()) / temperature + noise(row, len(logits))


def acceptable(logits: NDArray, row: Row, slack: float) -> set[int]:
    """Returns the tokens that a float32 sampler may choose: one, unless the row is a close call.

    Args:
        logits: Logits, [vocab], with at least one that is finite after the edits.
        row: What is asked for.
        slack: How far float32 may be off: shares and probabilities by it, scores by 100 times it.
    """
    values = edited(logits, row)
    if row.temperature == 0:
        return {int(np.argmax(values))}
    score = scores(values, row)
    best = score[kept(values, row, -slack)].max()
    close = kept(values, row, slack) & (score >= best - 100 * slack)
    return set(np.flatnonzero(close).tolist())
