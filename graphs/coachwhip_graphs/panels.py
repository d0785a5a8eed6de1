"""The shape of matrices in panels, the form in which a CPU multiplies by them; free of MAX.

A panel holds 64 rows of a matrix `[n, k]`, k by k: what a vector of outputs needs next lies next in
memory, and a sum stays in one lane. The unit is a word of four bytes: one float32, or two bfloat16
of neighbouring k. Rows beyond n and the second half of a last word are zeros.

See: mojo_kernels/linear.mojo.
"""

from __future__ import annotations

from math import ceil, prod

PANEL = 64
"""Rows of a matrix in one panel; `PANEL` of linear.mojo."""
WORD = 4
"""Bytes of a word."""
SUFFIX = ".panels"
"""What the registry name of a matrix in panels has more than that of the matrix."""


def panels_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, int, int]:
    """Returns the shape of a matrix in panels: [panels, words of k, 64 * values per word].

    Args:
        shape: Of the matrix, [..., n, k]; each of a stack of matrices has panels of its own.
        itemsize: Bytes per value: 4 or 2.
    """
    *stack, n, k = shape
    each = WORD // itemsize
    return prod(stack) * ceil(n / PANEL), ceil(k / each), PANEL * each
