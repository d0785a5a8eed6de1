"""Weights of the current graph, by name, as external constants.

Values are bound when a session loads the graph (`weights_registry`), so one compiled artifact
serves any checkpoint of its shape and no value is copied into it.
"""

from __future__ import annotations

from max.graph import DeviceRef, TensorValue, Weight

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
        if name not in self._made:
            entry = self._table[name]
            weight = Weight(name, entry.dtype, entry.shape, DeviceRef.CPU())
            value = TensorValue(weight)
            if self._device != DeviceRef.CPU():
                value = value.to(self._device)
            self._made[name] = value
        return self._made[name]
