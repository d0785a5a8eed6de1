"""Turns a Hugging Face checkpoint into a model description and a registry of weights.

The only place that knows how checkpoints spell things. Names are imported on first use: a model can
be described without MAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .disk_form import disk_tensors
    from .model_description import ModelDescription, read_model
    from .weights import load_weights

_HOMES = {
    "ModelDescription": "model_description",
    "read_model": "model_description",
    "disk_tensors": "disk_form",
    "load_weights": "weights",
}

__all__ = ["ModelDescription", "disk_tensors", "load_weights", "read_model"]


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
