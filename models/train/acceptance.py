"""How often the MTP head's greedy drafts equal the trunk's own greedy tokens."""

import torch
from torch import Tensor

from models.train.model import NemotronH


@torch.no_grad()
def greedy_rows(model: NemotronH, prefixes: Tensor, tokens: int) -> Tensor:
    """`prefixes` [rows, length], each row continued by `tokens` greedy tokens."""
    ids = prefixes
    for _ in range(tokens):
        h = model.backbone(ids)[:, -1]
        ids = torch.cat([ids, model.lm_head(h).argmax(-1, keepdim=True)], 1)
    return ids


@torch.no_grad()
def acceptance(model: NemotronH, prefixes: Tensor, tokens: int) -> tuple[list[float], int]:
    """Share of positions where the first draft, and the first two drafts, are accepted.

    Returns the two shares and the number of positions. On the trunk's own greedy text, teacher
    forcing is exact: the second draft counts only where the first one is accepted, and there its
    input token is the draft.
    """
    ids = greedy_rows(model, prefixes, tokens)
    # The last row of each depth predicts a token that the greedy text does not hold yet.
    first, second = (d[:, :-1].argmax(-1) for d in model.drafts(ids, model.backbone(ids), 2))
    # Row i has seen the trunk's greedy token i + 1, so rows start where that token is greedy.
    start = prefixes.shape[1] - 1
    one = first[:, start:-1] == ids[:, start + 2 : -1]
    two = one & (second[:, start:] == ids[:, start + 3 :])
    return [float(one.float().mean()), float(two.float().mean())], one.numel()
