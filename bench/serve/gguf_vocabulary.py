"""Writes a byte-level BPE tokenizer into a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

from gguf import GGUFWriter, TokenType

from coachwhip.checkpoint import ModelDescription
from coachwhip.errors import CheckpointError


def add_vocabulary(writer: GGUFWriter, model: ModelDescription) -> None:
    """Adds vocabulary, merges and special tokens of the `tokenizer.json` beside a model.

    Raises:
        CheckpointError: There is none, or it is no BPE whose words GPT-2's pattern parts.
    """
    file = model.path / "tokenizer.json"
    tokenizer = _read(file)
    bpe, size = tokenizer["model"], model.spec.vocab_size
    names = [f"[unused {i}]" for i in range(size)]
    types = [TokenType.UNUSED] * size
    for token, i in bpe["vocab"].items():
        names[i], types[i] = token, TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        i, special = added["id"], added["special"]
        names[i] = added["content"]
        types[i] = TokenType.CONTROL if special else TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]]
    )
    first = _first_token(tokenizer)
    writer.add_add_bos_token(first is not None)
    bos = model.bos_token_id if first is None else first
    if bos is not None:
        writer.add_bos_token_id(bos)
    if model.eos_token_ids:
        writer.add_eos_token_id(model.eos_token_ids[0])
    if model.pad_token_id is not None:
        writer.add_pad_token_id(model.pad_token_id)


def _read(file: Path) -> dict:
    if not file.is_file():
        raise CheckpointError(file, "no such file", "llama.cpp needs the tokenizer in its file")
    found = json.loads(file.read_text("utf-8"))
    split = found["pre_tokenizer"] or {}
    is_gpt2 = (
        found["model"]["type"] == "BPE"
        and found["normalizer"] is None
        and split.get("type") == "ByteLevel"
        and split.get("use_regex", True)
        and not split.get("add_prefix_space")
    )
    if not is_gpt2:
        raise CheckpointError(
            file,
            "is no byte-level BPE that parts words by GPT-2's pattern",
            "no other tokenizer can be written for llama.cpp",
        )
    return found


def _first_token(tokenizer: dict) -> int | None:
    """Returns the token that begins every prompt, if there is one."""
    processor = tokenizer.get("post_processor") or {}
    begin = next(iter(processor.get("single", ())), {})
    if "SpecialToken" not in begin:
        return None
    return processor["special_tokens"][begin["SpecialToken"]["id"]]["ids"][0]
