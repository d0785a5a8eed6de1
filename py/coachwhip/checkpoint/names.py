"""Maps the names of stored tensors to the one spelling that the graphs use."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

PUBLISHED_PREFIX = "backbone."
"""In front of the names of all published tensors but those of the heads."""

_PREFIXES = ("language_model.backbone.", "language_model.model.", PUBLISHED_PREFIX, "model.")
_HEADS = ("lm_head.", "mtp.")
_KV_SCALE = re.compile(r"\.[kv]_(proj\.[kv]_)?scale$")
_STACK = re.compile(r"\.mixer\.experts\.(up|down)_proj\.weight$")
_SHARED_BY_MTP = re.compile(r"^mtp\.(.+\.)?(embeddings?|embed_tokens|lm_head)\.weight$")


@dataclass
class CanonicalNames:
    """Stored names sorted by what becomes of them."""

    stored: dict[str, str] = field(default_factory=dict)
    """Canonical name -> name in the files."""
    repeated: list[tuple[str, str, str]] = field(default_factory=list)
    """(canonical name, first name, second name) of tensors stored under two spellings."""
    mtp_copies: list[str] = field(default_factory=list)
    """Embeddings and LM head of a multi-token-prediction head, which has the model's."""
    kv_scales: list[str] = field(default_factory=list)
    """Scales of a quantised KV cache, which is not used."""

    def prefix(self) -> str:
        """Returns what most stored names of layers have in front of their canonical ones."""
        found = Counter(
            stored.removesuffix(canonical)
            for canonical, stored in self.stored.items()
            if canonical.startswith("layers.") and stored.endswith(canonical)
        )
        return max(found, key=found.__getitem__, default=PUBLISHED_PREFIX)


def canonical_names(stored: Iterable[str]) -> CanonicalNames:
    """Sorts the names of a checkpoint's tensors.

    Canonical names are Hugging Face's below `backbone.`: `embeddings.weight`,
    `layers.3.mixer.in_proj.weight`, `norm_f.weight`, `lm_head.weight`, and beside them
    `mtp.layers.0.enorm.weight`. Experts may be stored one by one,
    `layers.1.mixer.experts.7.up_proj.weight`, or stacked, `layers.1.mixer.experts.up_proj`.
    """
    found = CanonicalNames()
    for name in sorted(stored):
        canonical = canonical_name(name)
        if _SHARED_BY_MTP.search(canonical):
            found.mtp_copies.append(name)
        elif _KV_SCALE.search(canonical):
            found.kv_scales.append(name)
        elif canonical in found.stored:
            found.repeated.append((canonical, found.stored[canonical], name))
        else:
            found.stored[canonical] = name
    return found


def canonical_name(name: str) -> str:
    """Returns the canonical spelling of one stored name.

    On disk there is `backbone.`; transformers 5 has `model.` in memory; multimodal wrappers put
    `language_model.` in front; state-spaces writes `embedding` without its s. Stacked experts may
    end in `.weight`.
    """
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    else:
        name = name.removeprefix("language_model.")
    if _STACK.search(name):
        return name.removesuffix(".weight")
    return "embeddings.weight" if name == "embedding.weight" else name


def stored_name(canonical: str, prefix: str = PUBLISHED_PREFIX) -> str:
    """Returns the name of a tensor in files that put `prefix` in front of the backbone's.

    The heads lie beside the backbone, with a multimodal wrapper's `language_model.` at most.
    """
    if canonical.startswith(_HEADS):
        prefix = "language_model." if prefix.startswith("language_model.") else ""
    return prefix + canonical
