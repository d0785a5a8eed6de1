"""Weights of the current graph, by name, as external constants.

Values are bound when a session loads the graph (`weights_registry`), so one compiled artifact
serves any checkpoint of its shape and no value is copied into it.
"""

from __future__ import annotations

from max.dtype import DType
from max.graph import DeviceRef, TensorValue, Weight

from .matrix import Matrix
from .panels import SUFFIX, panels_shape
from .weights import WeightSpec


class Registry:
    """A view of the weights below one name prefix."""

    def __init__(
        self,
        table: dict[str, WeightSpec],
        device: DeviceRef,
        prefix: str = "",
        made: dict[str, TensorValue] | None = None,
    ) -> None:
        self._table = table
        self._device = device
        self._prefix = prefix
        self._made = {} if made is None else made

    def below(self, prefix: str) -> Registry:
        """Returns the view below `prefix` of this one."""
        return Registry(self._table, self._device, self._prefix + prefix, self._made)

    def __getitem__(self, name: str) -> TensorValue:
        """Returns a weight of the current graph.

        Raises:
            KeyError: The table has no such name.
        """
        name = self._prefix + name
        entry = self._table[name]
        return self._weight(name, entry.shape, entry.dtype)

    def matrix(self, name: str) -> Matrix:
        """Returns a weight that rows are multiplied by: on a CPU its panels, `name` + `SUFFIX`.

        Raises:
            KeyError: The table has no such name.
        """
        if self._device != DeviceRef.CPU():
            value = self[name]
            return Matrix(value, tuple(value.shape))
        name = self._prefix + name
        entry = self._table[name]
        panels = panels_shape(entry.shape, entry.dtype.size_in_bytes)
        return Matrix(self._weight(name + SUFFIX, panels, entry.dtype), entry.shape)

    def _weight(self, name: str, shape: tuple[int, ...], dtype: DType) -> TensorValue:
        if name not in self._made:
            value = TensorValue(Weight(name, dtype, shape, DeviceRef.CPU()))
            if self._device != DeviceRef.CPU():
                value = value.to(self._device)
            self._made[name] = value
        return self._made[name]
