"""Shapes and dtypes of the weights a step graph asks its registry for, by their names."""

from __future__ import annotations

from dataclasses import dataclass

from max.dtype import DType

from .spec import ModelSpec
from .weight_shapes import WeightShape, head_weights, trunk_weights


@dataclass(frozen=True)
class WeightSpec:
    """Shape and dtype of one weight.

    Attributes:
        shape: As `trunk_weights` has it.
        dtype: Of its values.
        matrix: Whether rows are multiplied by it, for which a CPU has it in panels.
        plain: Whether a CPU has it as it is.
    """

    shape: tuple[int, ...]
    dtype: DType
    matrix: bool = False
    plain: bool = True


def graph_weights(spec: ModelSpec, dtype: DType) -> dict[str, WeightSpec]:
    """Lists every weight of the step graph of `spec`, as `trunk_weights` has them.

    Args:
        spec: The model.
        dtype: Model dtype, float32 or bfloat16; dtype of the matrices.
    """
    return _typed(trunk_weights(spec), dtype)


def mtp_weights(spec: ModelSpec, dtype: DType) -> dict[str, WeightSpec]:
    """Lists the weights that the draft graph of `spec` has beside embeddings and LM head."""
    return _typed(head_weights(spec), dtype)


def _typed(weights: dict[str, WeightShape], dtype: DType) -> dict[str, WeightSpec]:
    return {
        name: WeightSpec(
            weight.shape,
            DType.float32 if weight.wide else dtype,
            weight.matrix,
            weight.plain,
        )
        for name, weight in weights.items()
    }
