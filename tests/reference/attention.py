"""Reference of paged causal grouped-query attention, in numpy.

Computes in the type of its arguments (float64 in the tests), one row at a time.

See: Vaswani et al. 2017, arXiv 1706.03762; Ainslie et al. 2023, arXiv 2305.13245 (grouped query);
Kwon et al. 2023, arXiv 2309.06180 (pages).
"""

import numpy as np
from numpy.typing import NDArray


def attention(
    pages: NDArray,
    q: NDArray,
    k: NDArray,
    v: NDArray,
    seq_start: NDArray,
    kv_length: NDArray,
    block_table: NDArray,
    *,
    layer: int,
    scale: float,
) -> tuple[NDArray, NDArray]:
    """Stores the new keys and values, then attends each row to all keys up to its own.

    out[t] = softmax(scale * q[t] . k[0..pos(t)]) . v[0..pos(t)]; query head h uses K/V head
    h // (heads / kv_heads).

    Args:
        pages: [pages, layers, 2, kv_heads, page_size, head_dim]: K, then V. Not changed.
        q: [tokens, heads * head_dim].
        k: [tokens, kv_heads * head_dim]; as the cache's type holds it.
        v: [tokens, kv_heads * head_dim]; as the cache's type holds it.
        seq_start: [batch + 1]; first row of each sequence.
        kv_length: [batch]; keys that each sequence had before this step.
        block_table: [batch, pages per sequence]; pages in order.
        layer: Attention layer of the pool.
        scale: Factor on q.k.

    Returns:
        out [tokens, heads * head_dim], and the pages after the step.
    """
    _, _, _, kv_heads, page_size, head_dim = pages.shape
    tokens = len(q)
    group = q.shape[1] // (kv_heads * head_dim)
    q = q.reshape(tokens, kv_heads, group, head_dim)
    k = k.reshape(tokens, kv_heads, head_dim)
    v = v.reshape(tokens, kv_heads, head_dim)

    after = pages.copy()
    out = np.empty_like(q)
    for s, before in enumerate(kv_length):
        first, rows = seq_start[s], seq_start[s + 1] - seq_start[s]
        position = np.arange(before + rows if rows else 0)
        page, place = block_table[s, position // page_size], position % page_size
        for t in range(rows):
            after[page[before + t], layer, 0, :, place[before + t]] = k[first + t]
            after[page[before + t], layer, 1, :, place[before + t]] = v[first + t]
        # [positions, 2, kv_heads, head_dim] -> two of [kv_heads, positions, head_dim]
        keys, values = after[page, layer, :, :, place].transpose(1, 2, 0, 3)
        for t in range(rows):
            n = before + t + 1
            score = scale * q[first + t] @ keys[:, :n].swapaxes(1, 2)
            weight = np.exp(score - score.max(axis=2, keepdims=True))
            weight /= weight.sum(axis=2, keepdims=True)
            out[first + t] = weight @ values[:, :n]
    return out.reshape(tokens, kv_heads * group * head_dim), after
