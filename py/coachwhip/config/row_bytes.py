"""Bytes of one slot and of one page, and of a model's weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from coachwhip_graphs.panels import panels_shape
from coachwhip_graphs.spec import LayerKind, ModelSpec
from coachwhip_graphs.weight_shapes import model_weights

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class SlotParts:
    """Bytes of the parts of a slot: conv windows and SSM states of all Mamba layers, and the carry
    row of a draft head."""

    conv: int = 0
    ssm: int = 0
    carry: int = 0

    @property
    def total(self) -> int:
        return self.conv + self.ssm + self.carry


@dataclass(frozen=True)
class RowBytes:
    """Bytes of one slot, of one page, and of all weights."""

    slot: SlotParts
    page: int
    weights: int


def slot_parts(spec: ModelSpec, dtype: str, ssm_dtype: str, head: bool) -> SlotParts:
    """Returns the bytes of the parts of one slot, all 0 for a model without Mamba layers.

    Args:
        spec: The model.
        dtype: Of weights and activations.
        ssm_dtype: Of stored SSM states.
        head: Whether a draft head runs, which needs the carry row.
    """
    layers = spec.count(LayerKind.MAMBA2)
    if not layers:
        return SlotParts()
    m, size = spec.mamba, DTYPE_BYTES[dtype]
    return SlotParts(
        layers * (m.d_conv - 1) * m.conv_dim * size,
        layers * m.nheads * m.headdim * m.dstate * DTYPE_BYTES[ssm_dtype],
        spec.hidden_size * size if head else 0,
    )


def page_bytes(spec: ModelSpec, page_size: int, kv_dtype: str, head: bool) -> int:
    """Returns the bytes of one page: K and V of `page_size` tokens, with those of a draft head."""
    layers = spec.count(LayerKind.ATTENTION)
    layers += spec.count_mtp(LayerKind.ATTENTION) if head else 0
    if not layers:
        return 0
    return layers * 2 * spec.attention.kv_dim * page_size * DTYPE_BYTES[kv_dtype]


def weight_bytes(spec: ModelSpec, dtype: str, device: str) -> int:
    """Returns the bytes of all weights as graphs hold them, those of a draft head among them.

    On a CPU matrices are in panels, filled up to 64 rows; tied embeddings are there in both forms.

    Args:
        spec: The model.
        dtype: Of weights and activations.
        device: "cpu" or "gpu".
    """
    total = 0
    for weight in model_weights(spec).values():
        size = 4 if weight.wide else DTYPE_BYTES[dtype]
        if device == "gpu" or weight.plain:
            total += prod(weight.shape) * size
        if device != "gpu" and weight.matrix:
            total += prod(panels_shape(weight.shape, size)) * size
    return total
