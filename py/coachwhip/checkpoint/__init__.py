"""Turns a Hugging Face checkpoint into a model description and a registry of weights.

The only place that knows how checkpoints spell things.
"""

from .disk_form import disk_tensors
from .model_description import ModelDescription, read_model
from .weights import load_weights

__all__ = ["ModelDescription", "disk_tensors", "load_weights", "read_model"]
