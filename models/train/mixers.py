"""The four layer kinds of NemotronH, with the module names of the published checkpoints.

Source: the NemotronH technical report (2025) and the Nemotron 3 report for the mixture of experts.
Every linear map is without bias; shapes are [batch, length, hidden_size] in and out.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.train.conv import causal_conv
from models.train.ssd import ssd_chunked


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class GatedRMSNorm(nn.Module):
    """RMSNorm of x * silu(z) within each of `groups` equal slices; the gate comes first."""

    def __init__(self, size: int, groups: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.groups = groups
        self.eps = eps

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        x = (x.float() * F.silu(z.float())).unflatten(-1, (self.groups, -1))
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x.flatten(-2) * self.weight


class Mamba2Mixer(nn.Module):
    """Projection to z | x B C | dt, causal depthwise convolution, SSD, gated norm, projection."""

    def __init__(self, config: dict):
        super().__init__()
        hidden = config["hidden_size"]
        self.nheads = config["mamba_num_heads"]
        self.headdim = config["mamba_head_dim"]
        self.ngroups = config["n_groups"]
        self.dstate = config["ssm_state_size"]
        self.chunk_size = config["chunk_size"]
        self.inner = self.nheads * self.headdim
        self.conv_dim = self.inner + 2 * self.ngroups * self.dstate
        self.in_proj = nn.Linear(hidden, self.inner + self.conv_dim + self.nheads, bias=False)
        taps = config["conv_kernel"]
        self.conv1d = nn.Conv1d(self.conv_dim, self.conv_dim, taps, groups=self.conv_dim)
        step = torch.empty(self.nheads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        # The inverse of softplus, so that the steps start log-uniform in [1e-3, 1e-1].
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.A_log = nn.Parameter(torch.empty(self.nheads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(self.nheads))
        self.norm = GatedRMSNorm(self.inner, self.ngroups, config["layer_norm_epsilon"])
        self.out_proj = nn.Linear(self.inner, hidden, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        z, xbc, dt = self.in_proj(u).split([self.inner, self.conv_dim, self.nheads], -1)
        conv = causal_conv(xbc.float(), self.conv1d.weight, self.conv1d.bias)
        group = self.ngroups * self.dstate
        x, b, c = F.silu(conv).split([self.inner, group, group], -1)
        x = x.unflatten(-1, (self.nheads, self.headdim))
        b, c = (t.unflatten(-1, (self.ngroups, self.dstate)) for t in (b, c))
        with torch.autocast(u.device.type, enabled=False):
            dt = F.softplus(dt.float() + self.dt_bias)
            y, _ = ssd_chunked(x, dt, -self.A_log.exp(), b, c, self.chunk_size)
        y = y + self.D[:, None] * x
        return self.out_proj(self.norm(y.flatten(-2), z))


class Attention(nn.Module):
    """Causal grouped-query attention without position encoding."""

    def __init__(self, config: dict):
        super().__init__()
        hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.headdim = config["head_dim"]
        self.q_proj = nn.Linear(hidden, self.heads * self.headdim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.headdim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.headdim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.headdim, hidden, bias=False)

    def _heads(self, t: Tensor, heads: int) -> Tensor:
        return t.unflatten(-1, (heads, self.headdim)).transpose(1, 2)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of x, each repeated to [batch, heads, length, head_dim]."""
        repeat = self.heads // self.kv_heads
        k = self._heads(self.k_proj(x), self.kv_heads).repeat_interleave(repeat, 1)
        v = self._heads(self.v_proj(x), self.kv_heads).repeat_interleave(repeat, 1)
        return k, v

    def _joined(self, y: Tensor) -> Tensor:
        return self.o_proj(y.transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.keys_values(x)
        q = self._heads(self.q_proj(x), self.heads)
        return self._joined(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def after(self, x: Tensor, past: tuple[Tensor, Tensor]) -> Tensor:
        """Row i attends to rows 0..i of `past` and to itself, never to other rows of x.

        This is what a draft step sees: the cache of the confirmed positions and its own entry.
        """
        past_k, past_v = past
        k, v = self.keys_values(x)
        q = self._heads(self.q_proj(x), self.heads)
        scale = self.headdim**-0.5
        length = x.shape[1]
        visible = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        scores = (q @ past_k.transpose(-1, -2)).float() * scale
        scores = scores.masked_fill(~visible, float("-inf"))
        own = (q * k).sum(-1, keepdim=True).float() * scale
        weights = torch.cat([scores, own], -1).softmax(-1).to(v.dtype)
        return self._joined(weights[..., :-1] @ past_v + weights[..., -1:] * v)


class MLP(nn.Module):
    """down(relu(up(x))^2)."""

    def __init__(self, hidden: int, inner: int):
        super().__init__()
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.relu(self.up_proj(x)).square())


class Router(nn.Module):
    """Sigmoid scores, float32; a correction bias steers the choice of experts, not their weight."""

    def __init__(self, config: dict):
        super().__init__()
        experts = config["n_routed_experts"]
        self.top_k = config["num_experts_per_tok"]
        self.scaling = config["routed_scaling_factor"]
        self.weight = nn.Parameter(torch.empty(experts, config["hidden_size"]))
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [tokens, hidden] -> indices and weights of the chosen experts, [tokens, top_k]."""
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(F.linear(x.float(), self.weight))
        chosen = (scores.detach() + self.e_score_correction_bias).topk(self.top_k, -1)[1]
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.scaling
        if self.training:
            self.load += torch.bincount(chosen.flatten(), minlength=len(self.load))
        return chosen, weights

    @torch.no_grad()
    def rebalance(self, speed: float) -> None:
        """Moves the bias of each expert by `speed` against its load since the last call."""
        self.e_score_correction_bias += speed * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class MoE(nn.Module):
    """The weighted sum of top-k routed experts plus one shared expert."""

    def __init__(self, config: dict):
        super().__init__()
        hidden = config["hidden_size"]
        inner = config["moe_intermediate_size"]
        self.gate = Router(config)
        self.experts = nn.ModuleList(MLP(hidden, inner) for _ in range(config["n_routed_experts"]))
        self.shared_experts = MLP(hidden, config["moe_shared_expert_intermediate_size"])

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        chosen, weights = self.gate(flat)
        routed = torch.zeros_like(flat, dtype=torch.float32)
        for index, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == index)
            weighted = expert(flat[token]).float() * weights[token, rank, None]
            routed = routed.index_add(0, token, weighted)
        return routed.view(x.shape) + self.shared_experts(x)


def build_mixer(kind: str, config: dict) -> nn.Module:
    """The mixer of one pattern letter: M (Mamba2), * (attention), - (MLP), E (experts)."""
    if kind == "M":
        return Mamba2Mixer(config)
    if kind == "*":
        return Attention(config)
    if kind == "-":
        return MLP(config["hidden_size"], config["intermediate_size"])
    if kind == "E":
        return MoE(config)
    raise ValueError(f"pattern: unknown layer letter {kind!r}; use M, *, - or E")
