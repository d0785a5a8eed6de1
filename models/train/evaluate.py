"""Held-out loss and greedy continuation."""

import math

import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.train.loss import token_loss
from models.train.model import NemotronH
from models.train.tokenizer import EOS


@torch.no_grad()
def held_out_loss(
    model: NemotronH, documents: list[Tensor], length: int, limit: int | None = None
) -> tuple[float, int]:
    """Mean nats per token over consecutive windows of `length`, and how many tokens were scored.

    Every window starts from an empty state, so its first tokens have little context. `limit` takes
    only that many windows, spread evenly over the documents.
    """
    windows = [d[i : i + length + 1] for d in documents for i in range(0, len(d) - 1, length)]
    if limit and limit < len(windows):
        windows = [windows[i * len(windows) // limit] for i in range(limit)]
    total, count = 0.0, 0
    for window in windows:
        logits, _ = model(window[None, :-1])
        scored = len(window) - 1
        total += float(token_loss(logits, window[None, 1:])) * scored
        count += scored
    return total / count, count


def bits_per_byte(nats: float, tokens: int, size: int) -> float:
    """`nats` per token over `tokens` tokens that spell `size` bytes of text."""
    return nats * tokens / size / math.log(2)


@torch.no_grad()
def greedy(model: NemotronH, tokenizer: Tokenizer, prompt: str, tokens: int) -> str:
    """The prompt with up to `tokens` more tokens, each the most likely one."""
    ids = tokenizer.encode(prompt).ids
    for _ in range(tokens):
        logits, _ = model(torch.tensor([ids]))
        ids.append(int(logits[0, -1].argmax()))
        if ids[-1] == EOS:
            break
    return tokenizer.decode(ids)
