"""What the HTTP side knows of the model, and what it tells the engine process to make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..checkpoint import read_model
from ..config import EngineOptions, resolve, this_machine
from ..config.machine import driver_gpu
from ..config.options import OPTION_NAMES
from ..errors import ConfigError
from ..hub import refuse_revision, resolve_model
from ..locate import small_model_dir
from ..openai import Frontend

SMALL_MODEL = "small"
"""Name of the model that ships with the package."""


def make_frontend(
    options: EngineOptions, names: Sequence[str], on_warning: Callable[[str], None]
) -> tuple[Frontend, dict[str, object]]:
    """Resolves options against the model and this machine, and loads no weights.

    Args:
        options: The engine's options.
        names: Names to serve the model under; its own when empty.
        on_warning: Gets warnings about the model and the options, one line each.

    Returns:
        The frontend, and the options of the engine process: names -> values.

    Raises:
        ConfigError: An option or the model cannot run.
        CheckpointError: The model's files are missing or broken.
    """
    if options.model is None:
        refuse_revision(None, options.revision)
        folder = small_model_dir()
    else:
        folder = resolve_model(options.model, options.revision)
    model = read_model(folder)
    config = resolve(model.spec, model.dtype, options, this_machine(driver_gpu()))
    for line in (*model.warnings, *config.warnings):
        on_warning(line)
    if options.drafter is not None:
        raise ConfigError(
            "value", "drafter", repr(options.drafter), "unset", "an object cannot be served"
        )
    given = {name: getattr(options, name) for name in OPTION_NAMES if options.is_given(name)}
    # The folder, so that the engine process looks up nothing again.
    engine_options = {k: v for k, v in given.items() if k not in ("revision", "drafter")}
    served = tuple(names) or (options.model or SMALL_MODEL,)
    return Frontend(model, config, served), engine_options | {"model": str(folder)}
