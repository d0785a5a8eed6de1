"""Describes a model's layers and shapes, free of any checkpoint's spelling.

A `ModelSpec` is all that a graph builder needs to know: `coachwhip.checkpoint` makes one from a
`config.json`, and nothing below it reads configuration files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class LayerKind(StrEnum):
    """The mixer of a layer; values are NemotronH's pattern letters."""

    MAMBA2 = "M"
    ATTENTION = "*"
    MLP = "-"
    MOE = "E"


@dataclass(frozen=True)
class Mamba2Spec:
    """Shapes of every Mamba2 mixer of a model.

    `in_proj` rows are `z [d_inner] | x [d_inner] | B [ngroups*dstate] | C [ngroups*dstate] |
    dt [nheads]`; the convolution runs over `x | B | C`, `conv_dim` channels.
    """

    nheads: int
    headdim: int
    dstate: int
    ngroups: int
    d_conv: int
    dt_limit: tuple[float, float] = (0.0, math.inf)
    """Bounds of dt after softplus; (0, inf) means no clamp."""

    @property
    def d_inner(self) -> int:
        return self.nheads * self.headdim

    @property
    def conv_dim(self) -> int:
        return self.d_inner + 2 * self.ngroups * self.dstate

    @property
    def in_proj_dim(self) -> int:
        return self.d_inner + self.conv_dim + self.nheads

    @property
    def clamps_dt(self) -> bool:
        return self.dt_limit[0] > 0.0 or math.isfinite(self.dt_limit[1])


@dataclass(frozen=True)
class AttentionSpec:
    """Shapes of every attention mixer of a model: causal, grouped-query, no position encoding
    unless `rope_theta` is set."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor on q.k before the softmax."""
    rope_theta: float | None = None

    @property
    def q_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class MoeSpec:
    """Shapes and routing of every MoE layer of a model.

    A router scores all experts with a sigmoid, a bias takes part in the choice only, and the chosen
    experts' outputs are weighted by their scores. Experts may live in a narrower latent space, into
    which and out of which two projections lead; router and shared expert see the full row.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """Width of a routed expert's hidden rows."""
    shared_intermediate_size: int
    """Width of the shared expert's hidden rows; 0 without a shared expert."""
    latent_size: int | None
    """Width of the experts' rows; None when they see the full row."""
    num_groups: int = 1
    """Groups of experts; only the best `groups_per_token` of them can be chosen from."""
    groups_per_token: int = 1
    normalize_weights: bool = True
    """Divide a token's weights by their sum."""
    scaling_factor: float = 1.0
    """Factor on the weights after that."""


@dataclass(frozen=True)
class LayerSpec:
    """One residual layer: `x + mixer(RMSNorm(x))`."""

    kind: LayerKind
    intermediate_size: int | None = None
    """Width of an MLP layer's hidden rows; None for other kinds."""


@dataclass(frozen=True)
class ModelSpec:
    """A whole language model as the graphs see it."""

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    mamba: Mamba2Spec | None
    attention: AttentionSpec | None
    moe: MoeSpec | None = None
    mtp_layers: tuple[LayerSpec, ...] = ()
    """Layers of the multi-token-prediction head, one stored depth used again for deeper drafts;
    empty without one."""
    tie_embeddings: bool = False
    residual_fp32: bool = False
    """Keep the residual stream in float32 whatever the model dtype (pure Mamba2)."""
    max_position_embeddings: int | None = None
    """Longest sequence the model was made for, in tokens; None when the config does not say."""

    def count(self, kind: LayerKind) -> int:
        """Returns how many layers are of `kind`."""
        return sum(layer.kind == kind for layer in self.layers)

    def count_mtp(self, kind: LayerKind) -> int:
        """Returns how many layers of the multi-token-prediction head are of `kind`."""
        return sum(layer.kind == kind for layer in self.mtp_layers)

    @property
    def pattern(self) -> str:
        """The layer kinds as NemotronH's pattern string."""
        return "".join(layer.kind.value for layer in self.layers)
