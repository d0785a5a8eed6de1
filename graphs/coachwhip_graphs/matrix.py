"""A weight that rows are multiplied by, in the form that its device wants."""

from __future__ import annotations

from dataclasses import dataclass

from max.graph import Dim, TensorValue


@dataclass(frozen=True)
class Matrix:
    """A matrix, or a stack of them.

    Attributes:
        value: On a CPU its panels, see `panels.py`; on a GPU the matrix as it is.
        shape: Of the matrix: [n, k], or [experts, n, k] for a stack.
    """

    value: TensorValue
    shape: tuple[Dim | int, ...]
