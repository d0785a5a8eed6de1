"""The training loss: next token, plus the MTP head's later tokens."""

import torch
from torch import Tensor
from torch.nn import functional as F

from models.train.model import NemotronH
from models.train.tokenizer import PAD


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats per token, padding left out."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=PAD)


def imitation_loss(drafts: Tensor, target_logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of the draft against the trunk's own distribution for the same token.

    A draft is accepted where it equals the trunk's choice, not where it equals the text.
    """
    wanted = target_logits.detach().float().softmax(-1)
    losses = F.cross_entropy(drafts.float().flatten(0, 1), wanted.flatten(0, 1), reduction="none")
    real = targets.flatten() != PAD
    return losses[real].mean()


def joint_loss(model: NemotronH, batch: Tensor, weight: float, depths: int) -> dict[str, Tensor]:
    """`batch` [rows, length + 1] -> the losses `next`, `draft1`, `draft2`, ... and their `total`.

    total = next + weight * mean of the drafts. `depths` 0 trains the trunk alone.
    """
    ids, targets = batch[:, :-1], batch[:, 1:]
    logits, h = model(ids)
    losses = {"next": token_loss(logits, targets)}
    if depths:
        for depth, drafts in enumerate(model.drafts(ids, h, depths), 1):
            losses[f"draft{depth}"] = imitation_loss(drafts, logits[:, depth:], targets[:, depth:])
        draft = torch.stack([v for k, v in losses.items() if k != "next"]).mean()
        losses["total"] = losses["next"] + weight * draft
    else:
        losses["total"] = losses["next"]
    return losses
