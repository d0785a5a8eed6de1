"""A small byte-level BPE tokenizer, made by hand: every byte is a token, and some words of JSON."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

SPECIAL = ("<pad>", "<s>", "</s>", "<|im_end|>")
"""Tokens 0, 1, 2 and 3."""
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens after those, which are text as well."""
PIECES = ('{"', '":', '",', "tr", "ue", "true", "fa", "al", "nu", "ll", "null", "12", "the", "th")


def byte_tokenizer() -> Tokenizer:
    """Returns the tokenizer: 4 special tokens, 4 marks, 256 bytes, and merged pieces."""
    vocab = {token: i for i, token in enumerate((*SPECIAL, *MARKS, *sorted(ByteLevel.alphabet())))}
    merges = []
    for piece in sorted(PIECES, key=len):
        # Made of the longest piece that begins it, and what is left.
        for cut in range(len(piece) - 1, 0, -1):
            if piece[:cut] in vocab and piece[cut:] in vocab:
                merges.append((piece[:cut], piece[cut:]))
                vocab[piece] = len(vocab)
                break
    tokenizer = Tokenizer(BPE(vocab, merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in MARKS])
    return tokenizer


def save_byte_tokenizer(folder: Path) -> None:
    """Puts the tokenizer beside a checkpoint."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
