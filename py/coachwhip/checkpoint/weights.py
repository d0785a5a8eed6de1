"""Loads a checkpoint's tensors as the registry of weights that the graphs ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
from max.driver import Buffer
from max.dtype import DType

from coachwhip_graphs.panels import SUFFIX
from coachwhip_graphs.spec import ModelSpec
from coachwhip_graphs.weights import WeightSpec

from .convert import HELD, STORED, convert
from .disk_form import CONV_BIAS, wanted_weights
from .finite import count_nonfinite
from .hf_config import HFConfig
from .inventory import take_inventory
from .model_description import checkpoint_folder, stores_conv_bias
from .names import canonical_name
from .safetensors_files import SafetensorsFiles
from .safetensors_header import StoredTensor
from .to_panels import to_panels

_log = logging.getLogger(__name__)


def load_weights(
    path: str | Path,
    spec: ModelSpec,
    dtype: DType,
    *,
    mtp: bool = True,
    panels: bool = False,
    check_finite: bool = True,
    on_warning: Callable[[str], None] = _log.warning,
) -> dict[str, np.ndarray | Buffer]:
    """Loads the weights that `graph_weights` and `mtp_weights` list, under the same names.

    With `panels`, matrices that rows are multiplied by are laid out anew, under their names with
    `panels.SUFFIX`. What else is stored in the dtype it is asked for stays memory-mapped and is not
    copied, unless it lies at an odd address. Everything else is converted one tensor at a time:
    `mixer.A = -exp(A_log)` in float32, convolution taps transposed to `[d_conv, conv_dim]`
    float32, a bias of zeros when the config says `use_conv_bias: false`. Experts that are stored
    one by one are copied into one stack. The file's pages of all that is copied are given back at
    once, so that loading needs the memory of one copy of the weights and of one tensor; of two with
    `panels`, where one is converted or stacked first.

    Args:
        path: The checkpoint's folder.
        spec: The model, from `read_model`.
        dtype: Model dtype: float32, bfloat16 or float16.
        mtp: Load the multi-token-prediction head too, when the model has one.
        panels: Lay matrices out in panels, as graphs of a CPU want them (float32, bfloat16).
        check_finite: Count NaN and infinite values and report them. The check reads every page
            once: 0.06 s per GB on one core when the files are cached, else the disk's speed.
        on_warning: Called with one line about each tensor with such values, and about stored
            tensors that are not used. Logs them by default.

    Returns:
        Registry name -> contiguous numpy array (float32, float16) or `max.driver.Buffer`
        (bfloat16), each with its bytes mapped or owned.

    Raises:
        CheckpointError: A file is missing or malformed; tensors are missing, extra or misshapen.
    """
    folder = checkpoint_folder(path)
    files = SafetensorsFiles.open(folder)
    tensors = files.tensors
    if not mtp:
        tensors = {n: t for n, t in tensors.items() if not canonical_name(n).startswith("mtp.")}
    wanted = wanted_weights(spec, dtype, mtp)
    zeros: dict[str, WeightSpec] = {}
    if not stores_conv_bias(HFConfig.read(folder / "config.json")):
        zeros = {n: w for n, w in wanted.items() if n.endswith(CONV_BIAS)}
    stored = {name: weight for name, weight in wanted.items() if name not in zeros}
    inventory = take_inventory(folder, tensors, stored, on_warning)
    loader = _Loader(files, check_finite, on_warning)
    if inventory.tied_lm_head is not None:
        embeddings = inventory.sources["embeddings.weight"][0].name
        loader.compare_tied(inventory.tied_lm_head.name, embeddings)
    registry = {}
    for name, weight in wanted.items():
        if name in zeros:
            values = np.zeros(weight.shape, np.float32)
        else:
            values = loader.load(name, inventory.sources[name], weight)
        if not panels or weight.plain:
            registry[name] = _registry_value(values, weight)
        if panels and weight.matrix:
            registry[name + SUFFIX] = _registry_value(to_panels(values), weight)
            if not weight.plain:
                loader.release(inventory.sources[name])
        del values  # one that was converted goes before the next one comes
    return registry


class _Loader:
    """Reads weights and reports what is odd about their values."""

    def __init__(
        self, files: SafetensorsFiles, check_finite: bool, on_warning: Callable[[str], None]
    ):
        self._files, self._check_finite, self._on_warning = files, check_finite, on_warning

    def load(self, name: str, parts: tuple[StoredTensor, ...], weight: WeightSpec) -> np.ndarray:
        """Returns one weight as a contiguous array of `HELD[weight.dtype]` in the graph's shape."""
        if parts[0].shape == weight.shape[1:]:  # experts that are stored one by one
            return self._stack(parts, weight)
        stored = parts[0].name
        values = self._converted(stored, weight.dtype)
        if name.endswith(".mixer.A"):
            values = self._decay(stored, values)
        elif name.endswith(".mixer.conv1d.weight"):
            values = np.ascontiguousarray(values.reshape(weight.shape[::-1]).T)
        if not np.may_share_memory(values, self._files.values(stored)):
            self._files.release(stored)
        return values

    def release(self, parts: tuple[StoredTensor, ...]) -> None:
        """Gives back the pages of tensors of which nothing is used any more."""
        for part in parts:
            self._files.release(part.name)

    def _stack(self, parts: tuple[StoredTensor, ...], weight: WeightSpec) -> np.ndarray:
        """Copies tensors into one array, [parts, ...], with one of them at a time in memory."""
        stack = np.empty(weight.shape, HELD[weight.dtype])
        for row, part in zip(stack, parts, strict=True):
            row[...] = self._converted(part.name, weight.dtype)
            self._files.release(part.name)
        return stack

    def _converted(self, stored: str, dtype: DType) -> np.ndarray:
        values = convert(self._values(stored), STORED[self._files.tensors[stored].dtype], dtype)
        self._report_nonfinite(stored, values, dtype)
        return values

    def compare_tied(self, lm_head: str, embeddings: str) -> None:
        """Warns when a stored head differs from the embeddings that stand in for it."""
        if not np.array_equal(self._files.values(lm_head), self._files.values(embeddings)):
            self._on_warning(f"{lm_head} is not used: the model's head is tied to {embeddings}")
        self._files.release(lm_head)

    def _decay(self, stored: str, a_log: np.ndarray) -> np.ndarray:
        """Returns -exp(A_log), rounded once, from a float64 exponential."""
        decay = -np.exp(a_log.astype(np.float64))
        if (decay < np.finfo(np.float32).min).any():
            self._on_warning(f"{stored} holds values above 88: -exp(A_log) is infinite in float32")
        with np.errstate(over="ignore"):
            return decay.astype(np.float32)

    def _values(self, stored: str) -> np.ndarray:
        """Returns a tensor's values, mapped, or copied when they lie at an odd address."""
        tensor = self._files.tensors[stored]
        held = np.dtype(HELD[STORED[tensor.dtype]])
        raw = self._files.values(stored)
        if raw.ctypes.data % held.itemsize:
            raw = raw.copy()
        return raw.view(held).reshape(tensor.shape)

    def _report_nonfinite(self, stored: str, values: np.ndarray, dtype: DType) -> None:
        if not self._check_finite:
            return
        nans, infinities = count_nonfinite(values, dtype)
        if nans or infinities:
            self._on_warning(
                f"{stored} holds {nans} NaN and {infinities} infinite values in {dtype.name}"
            )


def _registry_value(values: np.ndarray, weight: WeightSpec) -> np.ndarray | Buffer:
    if weight.dtype == DType.bfloat16:
        return Buffer.from_numpy(values).view(DType.bfloat16, values.shape)
    return values
