"""A byte-level BPE tokenizer trained on the corpus."""

import random
import re

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PAD, BOS, EOS = 0, 1, 2
SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]


def train_tokenizer(documents: list[str], vocab_size: int) -> Tokenizer:
    """Exactly `vocab_size` tokens: the special ones, the 256 bytes, then merges.

    `encode` puts `<s>` in front; `encode(..., add_special_tokens=False)` does not.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    size = tokenizer.get_vocab_size()
    if size != vocab_size:
        raise ValueError(
            f"vocab_size: {vocab_size} asked, but the text gives {size}; use {size} or less"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    return tokenizer


def encode_document(tokenizer: Tokenizer, text: str) -> list[int]:
    """`<s>`, the text, `</s>`."""
    return [BOS, *tokenizer.encode(text, add_special_tokens=False).ids, EOS]


def encode_with_breaks(
    tokenizer: Tokenizer, text: str, every: int, rng: random.Random
) -> list[int]:
    """Like `encode_document`, but about one space in `every` is a token of its own.

    Prompts often end in a space, and the BPE joins a space to the word after it; without such
    examples the model never sees a word that follows a lone space.
    """
    ids, start = [BOS], 0
    for match in re.finditer(" ", text):
        if rng.randrange(every) == 0:
            ids += tokenizer.encode(text[start : match.end()], add_special_tokens=False).ids
            start = match.end()
    return [*ids, *tokenizer.encode(text[start:], add_special_tokens=False).ids, EOS]


def encode_corpus(
    tokenizer: Tokenizer, documents: list[str], breaks_every: int, seed: int
) -> list[torch.Tensor]:
    """One int64 tensor for each document; `breaks_every` 0 means no broken spaces."""
    rng = random.Random(seed)
    if breaks_every:
        encoded = (encode_with_breaks(tokenizer, d, breaks_every, rng) for d in documents)
    else:
        encoded = (encode_document(tokenizer, d) for d in documents)
    return [torch.tensor(ids) for ids in encoded]
