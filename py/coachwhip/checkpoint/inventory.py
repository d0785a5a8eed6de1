"""Matches the tensors of a checkpoint with the weights that a model's graphs ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from coachwhip_graphs.weights import WeightSpec

from ..errors import CheckpointError, capped
from .convert import STORED
from .disk_form import disk_form, is_expert_stack
from .names import CanonicalNames, canonical_names, stored_name
from .safetensors_header import StoredTensor


@dataclass(frozen=True)
class Inventory:
    """Where every weight comes from."""

    sources: dict[str, tuple[StoredTensor, ...]]
    """Registry name -> tensor of the files, or the experts' tensors in the order of the stack."""
    tied_lm_head: StoredTensor | None
    """A stored `lm_head.weight` that the model does not use, since its embeddings are tied."""


def take_inventory(
    folder: Path,
    tensors: dict[str, StoredTensor],
    wanted: dict[str, WeightSpec],
    on_warning: Callable[[str], None],
) -> Inventory:
    """Finds every wanted weight among the stored tensors.

    Args:
        folder: The checkpoint, for errors.
        tensors: Stored name -> tensor.
        wanted: Registry name -> shape and dtype.
        on_warning: Called with a line about tensors that are present and not used.

    Raises:
        CheckpointError: Tensors are missing, not known, of another shape, of a dtype that cannot
            be converted, or stored under two spellings: all of them in one error.
    """
    names = canonical_names(tensors)
    unused = dict(names.stored)
    search = _Search(tensors, unused, names.prefix())
    sources = {name: search.parts(name, weight) for name, weight in wanted.items()}
    tied_lm_head = None
    if "lm_head.weight" not in wanted and "lm_head.weight" in unused:
        tied_lm_head = tensors[unused.pop("lm_head.weight")]
    mtp = []
    if not any(name.startswith("mtp.") for name in wanted):
        mtp = [unused.pop(name) for name in list(unused) if name.startswith("mtp.")]
    kinds = {
        "missing": search.missing,
        "extra": [f"extra: {name} {list(tensors[name].shape)}" for name in unused.values()],
        "of wrong shape": search.misshapen,
        "of wrong dtype": search.no_dtype,
        "stored twice": [f"stored twice: {a} and {b}" for _, a, b in names.repeated],
    }
    _raise_for(folder, kinds)
    _warn_of_unused(names, mtp, on_warning)
    return Inventory(sources, tied_lm_head)


class _Search:
    """Takes tensors out of those that are not used yet, and lists what is wrong with them."""

    def __init__(self, tensors: dict[str, StoredTensor], unused: dict[str, str], prefix: str):
        self._tensors, self._unused, self._prefix = tensors, unused, prefix
        self.missing: list[str] = []
        self.misshapen: list[str] = []
        self.no_dtype: list[str] = []

    def parts(self, name: str, weight: WeightSpec) -> tuple[StoredTensor, ...]:
        """Returns the tensors that make up one weight, without those that are missing."""
        stacked = is_expert_stack(name) and name in self._unused
        form = [(name, weight.shape)] if stacked else disk_form(name, weight.shape)
        found = [self._take(canonical, shape) for canonical, shape in form]
        return tuple(tensor for tensor in found if tensor is not None)

    def _take(self, canonical: str, shape: tuple[int, ...]) -> StoredTensor | None:
        stored = self._unused.pop(canonical, None)
        if stored is None:
            name = stored_name(canonical, self._prefix)
            self.missing.append(f"missing: {name} {list(shape)}")
            return None
        tensor = self._tensors[stored]
        if tensor.shape != shape:
            self.misshapen.append(
                f"wrong shape: {stored} is {list(tensor.shape)}, but must be {list(shape)}"
            )
        if tensor.dtype not in STORED:
            self.no_dtype.append(
                f"wrong dtype: {stored} is {tensor.dtype}, but must be {', '.join(STORED)}"
            )
        return tensor


def _raise_for(folder: Path, kinds: dict[str, list[str]]) -> None:
    found = {kind: lines for kind, lines in kinds.items() if lines}
    if found:
        raise CheckpointError(
            folder,
            [line for lines in found.values() for line in capped(lines)],
            "config.json and weights do not describe the same model",
            "tensors " + ", ".join(f"{len(lines)} {kind}" for kind, lines in found.items()),
        )


def _warn_of_unused(
    names: CanonicalNames, mtp: list[str], on_warning: Callable[[str], None]
) -> None:
    for stored, what in (
        (mtp, "multi-token prediction (mtp)"),
        (names.mtp_copies, "own embedding or LM head (mtp)"),
        (names.kv_scales, "key-value cache scale"),
    ):
        if stored:
            on_warning(f"{len(stored)} {what} tensors are not used: {_examples(stored)}")


def _examples(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
