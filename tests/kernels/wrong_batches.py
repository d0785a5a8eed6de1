"""Batches that a host must not plan, and what an op says of each."""

import numpy as np
import pytest

from tests.kernels.arrays import Typed, indices
from tests.kernels.ragged import Ragged

RIGHT = Ragged(np.array([0, 2, 3]), np.array([0, -1]), np.array([-1, 1, -1]), 2)
"""Two sequences, three rows, two slots."""

WRONG = [
    ({"read_slot": [0, 2]}, r"read_slot\[1\] is 2, outside \[-1, 2\)"),
    ({"read_slot": [-2, 0]}, r"read_slot\[0\] is -2, outside \[-1, 2\)"),
    ({"write_slot": [-1, 5, 0]}, r"write_slot\[1\] is 5, outside \[-1, 2\)"),
    ({"write_slot": [0, 1, -7]}, r"write_slot\[2\] is -7, outside \[-1, 2\)"),
    ({"seq_start": [1, 2, 3]}, r"seq_start\[0\] is 1, it must be 0"),
    ({"seq_start": [0, 4, 3]}, r"seq_start\[2\] is 3, below seq_start\[1\] = 4"),
    ({"seq_start": [0, 2, 2]}, r"seq_start\[2\] is 2, but there are 3 rows"),
    ({"seq_start": [0, 2, 9]}, r"seq_start\[2\] is 9, but there are 3 rows"),
    ({"read_slot": [0]}, r"read_slot\.shape\[0\] is 1, expected 2"),
    ({"write_slot": [0]}, r"write_slot\.shape\[0\] is 1, expected 3"),
]
"""(what differs from `RIGHT`, what the message says)."""

each_wrong_batch = pytest.mark.parametrize(
    ("wrong", "message"), WRONG, ids=[f"{k}={v}" for w, _ in WRONG for k, v in w.items()]
)
"""Runs a test with each of `WRONG` as `wrong` and `message`."""


def wrong_operands(wrong: dict[str, list[int]]) -> list[Typed]:
    """Returns seq_start, read_slot and write_slot of `RIGHT`, but for what is wrong."""
    names = ["seq_start", "read_slot", "write_slot"]
    return [
        indices(wrong[name]) if name in wrong else right
        for name, right in zip(names, RIGHT.operands, strict=True)
    ]
