"""Host arrays that are used again in every step."""

from __future__ import annotations

import numpy as np


class ReusedArrays:
    """Arrays by name, which grow when more is asked for and are never given back."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._views: dict[str, np.ndarray] = {}

    def of(self, name: str, size: int, dtype: type = np.int32) -> np.ndarray:
        """Returns an array of `size` values, with any content; one name has one dtype.

        Asked for the same size again it returns the same object, so that what was made of it can
        be used again as well.
        """
        view = self._views.get(name)
        if view is not None and view.size == size:
            return view
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = self._arrays[name] = np.empty(max(64, 2 * size), dtype)
        view = self._views[name] = array[:size]
        return view
