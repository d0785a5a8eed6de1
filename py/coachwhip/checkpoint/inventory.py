"""Matches the tensors of a checkpoint with the weights that a model's graphs ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from coachwhip_graphs.weights import WeightSpec

from ..errors import CheckpointError, capped
from .convert import STORED
from .names import CanonicalNames, canonical_names
from .safetensors_header import StoredTensor


@dataclass(frozen=True)
class Inventory:
    """Where every weight comes from."""

    sources: dict[str, StoredTensor]
    """Registry name -> tensor of the files."""
    tied_lm_head: StoredTensor | None
    """A stored `lm_head.weight` that the model does not use, since its embeddings are tied."""


def stored_as(name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Returns the canonical name and the shape under which a checkpoint stores a graph's weight.

    `mixer.A` is computed from `A_log`; `mixer.conv1d.weight` is stored `[conv_dim, 1, d_conv]`.
    """
    if name.endswith(".mixer.A"):
        return name + "_log", shape
    if name.endswith(".mixer.conv1d.weight"):
        return name, (shape[1], 1, shape[0])
    return name, shape


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
    missing, misshapen, no_dtype, sources = [], [], [], {}
    unused = dict(names.stored)
    for name, weight in wanted.items():
        canonical, shape = stored_as(name, weight.shape)
        stored = unused.pop(canonical, None)
        if stored is None:
            missing.append(f"missing: {canonical} {list(shape)}")
            continue
        tensor = sources[name] = tensors[stored]
        if tensor.shape != shape:
            misshapen.append(
                f"wrong shape: {stored} is {list(tensor.shape)}, but must be {list(shape)}"
            )
        if tensor.dtype not in STORED:
            no_dtype.append(
                f"wrong dtype: {stored} is {tensor.dtype}, but must be {', '.join(STORED)}"
            )
    tied_lm_head = None
    if "lm_head.weight" not in wanted and "lm_head.weight" in unused:
        tied_lm_head = tensors[unused.pop("lm_head.weight")]
    kinds = {
        "missing": missing,
        "extra": [f"extra: {name} {list(tensors[name].shape)}" for name in unused.values()],
        "of wrong shape": misshapen,
        "of wrong dtype": no_dtype,
        "stored twice": [f"stored twice: {a} and {b}" for _, a, b in names.repeated],
    }
    _raise_for(folder, kinds)
    _warn_of_unused(names, on_warning)
    return Inventory(sources, tied_lm_head)


def _raise_for(folder: Path, kinds: dict[str, list[str]]) -> None:
    found = {kind: lines for kind, lines in kinds.items() if lines}
    if found:
        raise CheckpointError(
            folder,
            [line for lines in found.values() for line in capped(lines)],
            "config.json and weights do not describe the same model",
            "tensors " + ", ".join(f"{len(lines)} {kind}" for kind, lines in found.items()),
        )


def _warn_of_unused(names: CanonicalNames, on_warning: Callable[[str], None]) -> None:
    for stored, what in (
        (names.mtp, "multi-token prediction (mtp)"),
        (names.kv_scales, "key-value cache scale"),
    ):
        if stored:
            on_warning(f"{len(stored)} {what} tensors are not used: {_examples(stored)}")


def _examples(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
