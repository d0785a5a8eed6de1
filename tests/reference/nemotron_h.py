"""A readable float32 reference of NemotronH and of pure Mamba2, in torch.

One sequence at a time, the recurrence step by step, one expert at a time: slow and plain. It
reads configs and published tensor names by itself and shares no code with coachwhip.

See: Dao & Gu 2024, arXiv 2405.21060 (the mixer); docs of NemotronH (the order of layers).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import relu, silu, softplus

from tests.reference.checkpoints import layer_letters, mamba_sizes

# The matrices are tiny: a second thread only waits for the first (6 times slower on busy cores).
torch.set_num_threads(1)


@dataclass
class State:
    """What a sequence has left behind: one entry per layer, None where nothing is kept.

    A Mamba2 layer keeps (conv window [d_conv - 1, conv_dim] of rows before the convolution,
    ssm state [nheads, headdim, dstate]); an attention layer its keys and values
    [positions, kv heads, head_dim]. Entries are replaced, never changed in place.
    """

    layers: list[tuple[Tensor, Tensor] | None] = field(default_factory=list)

    def copy(self) -> State:
        """Returns a state that later steps of this one do not change."""
        return State(list(self.layers))


class Weights:
    """A view of the tensors below a prefix."""

    def __init__(self, tensors: dict[str, Tensor], prefix: str = ""):
        self._tensors, self._prefix = tensors, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[self._prefix + name]

    def get(self, name: str) -> Tensor | None:
        return self._tensors.get(self._prefix + name)

    def below(self, prefix: str) -> Weights:
        return Weights(self._tensors, f"{self._prefix}{prefix}.")


class Reference:
    """A language model that computes in float32 from `config.json` and published names.

    Args:
        config: As `json.load` reads it: nemotron_h, mamba2, or state-spaces' own format.
        tensors: Published name -> tensor of any float dtype.
    """

    def __init__(self, config: dict, tensors: dict[str, Tensor]):
        self.config = config
        self.tensors = {name.removeprefix("backbone."): t.float() for name, t in tensors.items()}
        self.tensors.setdefault("embeddings.weight", self.tensors.get("embedding.weight"))
        self.tensors.setdefault("lm_head.weight", self.tensors["embeddings.weight"])
        self.letters = layer_letters(config)
        self.mtp_letters = layer_letters(config, "mtp_") or "*E"
        self.eps = config.get("layer_norm_epsilon", 1e-5)
        self.weights = Weights(self.tensors)

    @classmethod
    def from_folder(cls, folder: Path) -> Reference:
        """Reads a checkpoint that `write_checkpoint` wrote with the prefix `backbone.`."""
        tensors: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(file)
        return cls(json.loads((folder / "config.json").read_text()), tensors)

    def start(self) -> State:
        """Returns the state before the first token."""
        return State([None] * len(self.letters))

    def hidden(self, ids: list[int], state: State) -> Tensor:
        """Advances `state` over `ids`; returns the rows after the last norm, [tokens, hidden]."""
        x = self.weights["embeddings.weight"][torch.tensor(ids)]
        for i, letter in enumerate(self.letters):
            x, state.layers[i] = self._layer(
                letter, x, self.weights.below(f"layers.{i}"), state.layers[i]
            )
        return rms_norm(x, self.weights["norm_f.weight"], self.eps)

    def logits(self, ids: list[int], state: State | None = None) -> Tensor:
        """Returns the logits after each of `ids`, [tokens, vocab].

        Args:
            ids: The next tokens of the sequence.
            state: Where the sequence stands, advanced in place; None starts a new one.
        """
        return self.head(self.hidden(ids, self.start() if state is None else state))

    def head(self, hidden: Tensor) -> Tensor:
        """Returns the logits of rows after the last norm."""
        return hidden @ self.weights["lm_head.weight"].T

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """Returns the `count` tokens of highest logit that follow `ids`, one step each."""
        state, found, rows = self.start(), [], list(ids)
        for _ in range(count):
            rows = [int(self.logits(rows, state)[-1].argmax())]
            found += rows
        return found

    def mtp(
        self, next_ids: list[int], hidden: Tensor, state: State, depth: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Runs one depth of the multi-token-prediction head.

        x = [RMSNorm(embedding of the next token) | RMSNorm(hidden)] @ eh_proj^T, then the head's
        layers, then its own norm.

        Args:
            next_ids: Token at position i + 1, for each row i.
            hidden: [tokens, hidden] rows after the last norm at position i, or the rows that the
                head returned for position i before.
            state: From `start_mtp`; advanced in place.
            depth: Which of the stored heads.

        Returns:
            Logits of the token at position i + 2, and the head's rows.
        """
        first = depth * len(self.mtp_letters)
        weights = self.weights.below(f"mtp.layers.{first}")
        embedded = self.weights["embeddings.weight"][torch.tensor(next_ids)]
        both = torch.cat(
            [
                rms_norm(embedded, weights["enorm.weight"], self.eps),
                rms_norm(hidden, weights["hnorm.weight"], self.eps),
            ],
            dim=-1,
        )
        x = both @ weights["eh_proj.weight"].T
        for j, letter in enumerate(self.mtp_letters):
            weights = self.weights.below(f"mtp.layers.{first + j}")
            x, state.layers[j] = self._layer(letter, x, weights, state.layers[j])
        x = rms_norm(x, weights["final_layernorm.weight"], self.eps)
        return self.head(x), x

    def start_mtp(self) -> State:
        """Returns the head's state before the first token."""
        return State([None] * len(self.mtp_letters))

    def draft(self, ids: list[int], count: int) -> tuple[int, list[int]]:
        """Returns the greedy token after `ids`, and `count` drafts of the tokens after that.

        The first draft sees the model's own rows; each later one the head's row before it.
        """
        rows = self.hidden(ids, self.start())
        token = int(self.head(rows[-1]).argmax())
        state, drafts = self.start_mtp(), []
        next_ids = [*ids[1:], token]
        for _ in range(count):
            logits, rows = self.mtp(next_ids, rows, state)
            drafts.append(int(logits[-1].argmax()))
            next_ids, rows = drafts[-1:], rows[-1:]
        return token, drafts

    def _layer(
        self, letter: str, x: Tensor, weights: Weights, kept: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        normed = rms_norm(x, weights["norm.weight"], self.eps)
        mixer = weights.below("mixer")
        if letter == "M":
            y, kept = mamba2(normed, mixer, self.config, self.eps, kept)
        elif letter == "*":
            y, kept = attention(normed, mixer, self.config, kept)
        elif letter == "-":
            y = mlp(normed, mixer)
        else:
            y = moe(normed, mixer, self.config)
        return x + y, kept


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns x / sqrt(mean(x^2) + eps) * weight, over the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def dt_limit(config: dict) -> tuple[float, float]:
    """Returns the bounds of dt of a config, in either spelling of infinity."""
    limit = config.get("time_step_limit") or (0.0, math.inf)
    low, high = (float(v["__float__"]) if isinstance(v, dict) else float(v) for v in limit)
    return low, high


def mamba2(
    u: Tensor, weights: Weights, config: dict, eps: float, kept: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Advances a Mamba2 mixer over rows u, [tokens, hidden].

    h <- exp(dt*A)*h + dt*x (x) B;  y = C.h + D*x, head by head, after a causal depthwise
    convolution and SiLU over x, B and C; then y*silu(z), normalised within each group.
    """
    sizes = mamba_sizes(config)
    nheads, headdim, dstate = sizes["nheads"], sizes["headdim"], sizes["dstate"]
    ngroups, d_conv, tokens = sizes["ngroups"], sizes["d_conv"], len(u)
    d_inner, heads_per_group = nheads * headdim, nheads // ngroups
    conv_dim = d_inner + 2 * ngroups * dstate
    window, h = kept or (torch.zeros(d_conv - 1, conv_dim), torch.zeros(nheads, headdim, dstate))

    z, rows, dt = (u @ weights["in_proj.weight"].T).split([d_inner, conv_dim, nheads], dim=-1)
    rows = torch.cat([window, rows])
    taps = weights["conv1d.weight"].squeeze(1)  # [conv_dim, d_conv], the last for the current row
    convolved = sum(rows[k : k + tokens] * taps[:, k] for k in range(d_conv))
    bias = weights.get("conv1d.bias")
    convolved = silu(convolved if bias is None else convolved + bias)
    x, b, c = convolved.split([d_inner, ngroups * dstate, ngroups * dstate], dim=-1)
    x = x.reshape(tokens, nheads, headdim)
    b = b.reshape(tokens, ngroups, dstate).repeat_interleave(heads_per_group, dim=1)
    c = c.reshape(tokens, ngroups, dstate).repeat_interleave(heads_per_group, dim=1)
    dt = softplus(dt + weights["dt_bias"]).clamp(*dt_limit(config))
    decay = torch.exp(dt * -torch.exp(weights["A_log"]))

    y = torch.empty(tokens, nheads, headdim)
    for t in range(tokens):
        added = torch.einsum("hp,hn->hpn", dt[t, :, None] * x[t], b[t])
        h = decay[t, :, None, None] * h + added
        y[t] = torch.einsum("hpn,hn->hp", h, c[t]) + weights["D"][:, None] * x[t]

    gated = (y.reshape(tokens, d_inner) * silu(z)).reshape(tokens, ngroups, -1)
    normed = rms_norm(gated, weights["norm.weight"].reshape(ngroups, -1), eps)
    out = normed.reshape(tokens, d_inner) @ weights["out_proj.weight"].T
    return out, (rows[tokens:], h)


def attention(
    u: Tensor, weights: Weights, config: dict, kept: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Advances causal grouped-query attention, without positions, over rows u."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim, tokens = config["head_dim"], len(u)
    q = (u @ weights["q_proj.weight"].T).reshape(tokens, kv_heads, heads // kv_heads, head_dim)
    k = (u @ weights["k_proj.weight"].T).reshape(tokens, kv_heads, head_dim)
    v = (u @ weights["v_proj.weight"].T).reshape(tokens, kv_heads, head_dim)
    if kept is not None:
        k, v = torch.cat([kept[0], k]), torch.cat([kept[1], v])
    scores = torch.einsum("tgrd,sgd->grts", q, k) / math.sqrt(head_dim)
    first = len(k) - tokens
    future = torch.arange(len(k))[None, :] > torch.arange(first, len(k))[:, None]
    shares = scores.masked_fill(future, -math.inf).softmax(-1)
    mixed = torch.einsum("grts,sgd->tgrd", shares, v).reshape(tokens, heads * head_dim)
    return mixed @ weights["o_proj.weight"].T, (k, v)


def mlp(u: Tensor, weights: Weights) -> Tensor:
    """Returns down(relu(up(u))^2)."""
    return relu(u @ weights["up_proj.weight"].T).square() @ weights["down_proj.weight"].T


def moe(u: Tensor, weights: Weights, config: dict) -> Tensor:
    """Returns the shared expert's output plus the routed experts', weighted row by row.

    Experts are chosen by sigmoid score plus bias, and weighted by the score alone. With a latent
    size the routed experts, and only they, work on a projection of u.
    """
    chosen, shares = route(u, weights.below("gate"), config)
    latent = config.get("moe_latent_size")
    rows = u @ weights["fc1_latent_proj.weight"].T if latent else u
    routed = torch.zeros_like(rows)
    for t in range(len(u)):
        for expert, share in zip(chosen[t].tolist(), shares[t], strict=True):
            routed[t] += share * mlp(rows[t], weights.below(f"experts.{expert}"))
    if latent:
        routed = routed @ weights["fc2_latent_proj.weight"].T
    return routed + mlp(u, weights.below("shared_experts"))


def route(u: Tensor, gate: Weights, config: dict) -> tuple[Tensor, Tensor]:
    """Returns each row's experts and their shares, [tokens, num_experts_per_tok]."""
    experts, groups = config["n_routed_experts"], config.get("n_group", 1)
    scores = torch.sigmoid(u @ gate["weight"].T)
    ranked = scores + gate["e_score_correction_bias"]
    if groups > 1:
        by_group = ranked.reshape(-1, groups, experts // groups)
        group_scores = by_group.topk(2, dim=-1).values.sum(-1)
        kept = group_scores.topk(config["topk_group"], dim=-1).indices
        dropped = torch.ones_like(group_scores, dtype=torch.bool).scatter(1, kept, False)
        ranked = by_group.masked_fill(dropped[:, :, None], -math.inf).reshape(-1, experts)
    chosen = ranked.topk(config["num_experts_per_tok"], dim=-1).indices
    shares = scores.gather(1, chosen)
    if config.get("norm_topk_prob", True):
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    return chosen, shares * config["routed_scaling_factor"]
