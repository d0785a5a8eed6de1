"""How the weights of a graph are stored: under which names, in which shapes, in how many parts."""

from __future__ import annotations

import re

from max.dtype import DType

from coachwhip_graphs.spec import ModelSpec
from coachwhip_graphs.weights import WeightSpec, graph_weights, mtp_weights

from .names import stored_name

CONV_BIAS = ".mixer.conv1d.bias"
"""End of the names of the weights that a model with `use_conv_bias: false` does not store."""

_EXPERTS = re.compile(r"\.mixer\.experts\.(up|down)_proj$")


def disk_form(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the canonical names and the shapes under which checkpoints store a graph's weight.

    `mixer.A` is computed from `A_log`; `mixer.conv1d.weight` is stored `[conv_dim, 1, d_conv]`;
    the experts' matrices are stored one by one. What the list holds in its order is the weight's
    parts along its first axis.
    """
    if name.endswith(".mixer.A"):
        return [(name + "_log", shape)]
    if name.endswith(".mixer.conv1d.weight"):
        return [(name, (shape[1], 1, shape[0]))]
    if is_expert_stack(name):
        layer, matrix = name.rsplit(".", 1)
        return [(f"{layer}.{e}.{matrix}.weight", shape[1:]) for e in range(shape[0])]
    return [(name, shape)]


def is_expert_stack(name: str) -> bool:
    """Says whether a graph's weight is the stack of a layer's routed experts, which some
    checkpoints store as it is, under the same name."""
    return _EXPERTS.search(name) is not None


def wanted_weights(spec: ModelSpec, dtype: DType, mtp: bool = True) -> dict[str, WeightSpec]:
    """Lists the weights of all graphs of a model, those of its multi-token-prediction head last.

    Args:
        spec: The model.
        dtype: Model dtype, of the matrices.
        mtp: List the head too, when the model has one.
    """
    return graph_weights(spec, dtype) | (mtp_weights(spec, dtype) if mtp else {})


def disk_tensors(
    spec: ModelSpec, *, mtp: bool = True, conv_bias: bool = True
) -> dict[str, tuple[int, ...]]:
    """Lists the tensors of a published checkpoint: published name -> shape.

    It is what `load_weights` looks for, so that a model's size is known and a list of its files
    can be checked before any of them is there.

    Args:
        spec: The model.
        mtp: List the multi-token-prediction head too, when the model has one.
        conv_bias: The convolutions have a bias (`use_conv_bias`).
    """
    found = {}
    for name, weight in wanted_weights(spec, DType.bfloat16, mtp).items():
        if name.endswith(CONV_BIAS) and not conv_bias:
            continue
        for canonical, shape in disk_form(name, weight.shape):
            found[stored_name(canonical)] = shape
    return found
