"""Which lines of an input a run has to do."""

from __future__ import annotations

import re

import numpy as np

from ..errors import RequestError

_SHARD = re.compile(r"(\d{1,9})/(\d{1,9})")


def parse_shard(text: str | None) -> tuple[int, int]:
    """Returns (i, n) of `i/n`, (1, 1) for None.

    Raises:
        RequestError: It is no such text, or i is not from 1 to n.
    """
    if text is None:
        return 1, 1
    found = _SHARD.fullmatch(text)
    i, n = map(int, found.groups()) if found else (0, 0)
    if not 1 <= i <= n:
        raise RequestError("--shard", text, "give i/n with i from 1 to n, such as 1/4")
    return i, n


def selected(lines: int, shard: tuple[int, int], limit: int | None) -> np.ndarray:
    """Returns which lines belong to a run: [lines] bool.

    Shards are stretches of the input, since neighbours are likely to share prefixes; of the shard
    the limit takes the first lines.
    """
    i, n = shard
    begin, end = lines * (i - 1) // n, lines * i // n
    if limit is not None:
        end = min(end, begin + limit)
    found = np.zeros(lines, bool)
    found[begin:end] = True
    return found
