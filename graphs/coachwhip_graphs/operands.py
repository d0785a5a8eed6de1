"""Checks of a custom op's operands, when a graph is built.

Ranks and dtypes of custom ops are otherwise checked only when a graph is loaded, with a message
from generated code; here they are a `ValueError` that names the tensor.
"""

from __future__ import annotations

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, ops

FLOATS = (DType.float32, DType.bfloat16)
"""Types of activations."""
STATES = (DType.float32, DType.float16, DType.bfloat16)
"""Types of states."""


def check(op: str, name: str, value, rank: int, dtypes) -> None:
    """Raises a ValueError unless an operand has this rank and one of these dtypes."""
    dtypes = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if value.rank != rank:
        raise ValueError(f"{op}: {name} has rank {value.rank} ({value.shape}), expected {rank}")
    if value.dtype not in dtypes:
        allowed = " or ".join(d.name for d in dtypes)
        raise ValueError(f"{op}: {name} is {value.dtype.name}, expected {allowed}")


def check_same_dtype(op: str, **values) -> None:
    """Raises a ValueError unless the operands, given by name, have one dtype."""
    (first, one), *others = values.items()
    for name, value in others:
        if value.dtype != one.dtype:
            raise ValueError(f"{op}: {name} is {value.dtype.name}, but {first} is {one.dtype.name}")


def scalar(value: float, dtype: DType) -> TensorValue:
    """A scalar of an op, which is read on the host, whatever device the op runs on."""
    return ops.constant(value, dtype, DeviceRef.CPU())
