"""Reads what a draft model is; what is wrong with its name is said of the option that named it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..checkpoint import ModelDescription, read_model
from ..errors import CheckpointError, ConfigError
from .draft_pools import FIELD


def read_draft_model(name: str, find: Callable[[str], Path]) -> ModelDescription:
    """Returns the description of a draft model.

    Args:
        name: Folder or hub id.
        find: Returns its folder, which may be one without weights.

    Raises:
        ConfigError: There is no such model, or it is not supported.
        CheckpointError: Its files are missing or broken.
    """
    try:
        folder = find(name)
        return read_model(folder, has_weights=any(folder.glob("*.safetensors")))
    except CheckpointError as error:
        raise CheckpointError(f"{FIELD}: {error.path}", error.problems, error.hint) from error
    except ConfigError as error:
        if error.field != "model":
            raise
        raise ConfigError(error.code, FIELD, error.got, error.allowed, error.hint) from error
