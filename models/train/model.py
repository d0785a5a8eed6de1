"""NemotronH with its multi-token-prediction (MTP) head, driven by two pattern strings.

Trunk: x = x + mixer(RMSNorm(x)) for each letter of `hybrid_override_pattern`, then `norm_f`, then
`lm_head`. MTP: with h_i the trunk output after `norm_f` (or the previous draft output) and e the
embedding of the token that follows, x_i = eh_proj([RMSNorm(e); RMSNorm(h_i)]), the layers of
`mtp_hybrid_override_pattern`, and `final_layernorm`; `lm_head` is shared.
`state_dict()` has the tensor names of the published checkpoints.
"""

import math

import torch
from torch import Tensor, nn

from models.train.mixers import Attention, RMSNorm, Router, build_mixer


class Block(nn.Module):
    """One residual layer."""

    def __init__(self, kind: str, config: dict):
        super().__init__()
        self.norm = RMSNorm(config["hidden_size"], config["layer_norm_epsilon"])
        self.mixer = build_mixer(kind, config)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(self.norm(x))


class Backbone(nn.Module):
    """Embeddings, the layers and the last norm."""

    def __init__(self, config: dict):
        super().__init__()
        self.embeddings = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Block(k, config) for k in config["hybrid_override_pattern"])
        self.norm_f = RMSNorm(config["hidden_size"], config["layer_norm_epsilon"])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm_f(x)


class MultiTokenHead(nn.Module):
    """One physical set of MTP layers, applied again for every further draft."""

    def __init__(self, config: dict):
        super().__init__()
        hidden, eps = config["hidden_size"], config["layer_norm_epsilon"]
        pattern = config["mtp_hybrid_override_pattern"]
        if set(pattern) - set("*E-"):
            raise ValueError(
                f"mtp_hybrid_override_pattern: {pattern!r} has a letter other than *, E and -"
            )
        self.layers = nn.ModuleList(Block(k, config) for k in pattern)
        self.layers[0].enorm = RMSNorm(hidden, eps)
        self.layers[0].hnorm = RMSNorm(hidden, eps)
        self.layers[0].eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.layers[-1].final_layernorm = RMSNorm(hidden, eps)

    def forward(
        self, embedded: Tensor, h: Tensor, past: list[tuple[Tensor, Tensor]] | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Next draft states, and the keys and values that this pass adds for each * layer.

        embedded, h [batch, length, hidden]. `past` is None for the first draft (rows attend to
        each other causally) and the first draft's keys and values for a second one.
        """
        first = self.layers[0]
        x = first.eh_proj(torch.cat([first.enorm(embedded), first.hnorm(h)], -1))
        cache = []
        for layer in self.layers:
            if not isinstance(layer.mixer, Attention):
                x = layer(x)
                continue
            normed = layer.norm(x)
            if past is None:
                cache.append(layer.mixer.keys_values(normed))
                x = x + layer.mixer(normed)
            else:
                x = x + layer.mixer.after(normed, past[len(cache)])
                cache.append(past[len(cache)])
        return self.layers[-1].final_layernorm(x), cache


class NemotronH(nn.Module):
    """The language model: ids [batch, length] -> logits [batch, length, vocab]."""

    def __init__(self, config: dict):
        super().__init__()
        self.config = config
        self.backbone = Backbone(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        if config.get("num_nextn_predict_layers"):
            self.mtp = MultiTokenHead(config)
        self._initialise()

    def _initialise(self) -> None:
        depth = len(self.config["hybrid_override_pattern"])
        for name, parameter in self.named_parameters():
            if parameter.ndim != 2:
                continue
            scale = 0.02 if "embeddings" in name else parameter.shape[1] ** -0.5
            if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                # Outputs that add to the residual start small, so that depth does not raise it.
                scale /= math.sqrt(2 * depth)
            nn.init.normal_(parameter, std=min(scale, 0.06))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits for the next token, and the states after `norm_f`."""
        h = self.backbone(ids)
        return self.lm_head(h), h

    def drafts(self, ids: Tensor, h: Tensor, depths: int) -> list[Tensor]:
        """Draft logits of each depth, 1 or 2, on known text.

        Row i of depth d (from 1) has seen ids[: i + d + 1] and predicts ids[i + d + 1]; depth d
        has `length - d` rows.
        """
        embedded = self.backbone.embeddings(ids)
        past, out = None, []
        for depth in range(1, depths + 1):
            rows = ids.shape[1] - depth
            h = h[:, :rows]
            if past is not None:
                past = [(k[:, :, :rows], v[:, :, :rows]) for k, v in past]
            h, cache = self.mtp(embedded[:, depth:], h, past)
            past = past or cache
            out.append(self.lm_head(h))
        return out

    def routers(self) -> list[Router]:
        """Every router, for load balancing."""
        return [m for m in self.modules() if isinstance(m, Router)]
