"""Batches as a pure function of the seed and the step, so that a resumed run sees the same ones."""

import torch
from torch import Tensor

from models.train.tokenizer import PAD


class Batches:
    """Crops of `length` + 1 tokens: every epoch cuts the text at new places and shuffles the cuts.

    An epoch holds the stream of all documents cut from a random offset, and for each document one
    crop that begins with its first token, since prompts begin that way.
    """

    def __init__(self, documents: list[Tensor], length: int, batch_size: int, seed: int):
        self.stream = torch.cat(documents)
        self.crop = length + 1
        self.batch_size = batch_size
        self.seed = seed
        ends = torch.tensor([len(d) for d in documents]).cumsum(0)
        self.starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        self.cuts = max(len(self.stream) - self.crop, length) // length
        self.per_epoch = (self.cuts + len(documents)) // batch_size
        if self.per_epoch == 0:
            raise ValueError(
                f"batch_size: {batch_size} crops are more than the corpus has; use a smaller one"
            )
        self._epoch = None

    def _order(self, epoch: int) -> Tensor:
        if self._epoch is None or self._epoch[0] != epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            length = self.crop - 1
            offset = torch.randint(length, (1,), generator=generator)
            places = torch.cat([torch.arange(self.cuts) * length + offset, self.starts])
            order = places[torch.randperm(len(places), generator=generator)]
            self._epoch = (epoch, order)
        return self._epoch[1]

    def batch(self, step: int) -> Tensor:
        """Token ids [batch_size, length + 1], int64, padded with `<pad>` past the last token."""
        epoch, within = divmod(step, self.per_epoch)
        places = self._order(epoch)[within * self.batch_size :][: self.batch_size]
        rows = torch.full((self.batch_size, self.crop), PAD)
        for row, place in zip(rows, places, strict=True):
            piece = self.stream[place : place + self.crop]
            row[: len(piece)] = piece
        return rows
