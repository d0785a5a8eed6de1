"""Finds what ships beside the Python code: the Mojo kernels and the small model.

Both lie inside the package in an installed wheel, and in their own top-level folders in a checkout
(which is also where an editable install points).
"""

import os
from pathlib import Path

from coachwhip.errors import MISSING, ConfigError

KERNELS_ENV = "COACHWHIP_KERNELS"

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parents[1]


def kernels_dir() -> Path:
    """Returns the folder of the Mojo package that registers the ops named `coachwhip.*`.

    Returns:
        The folder that `$COACHWHIP_KERNELS` names, else the packaged one, else the checkout's.
    Raises:
        ConfigError: no such folder holds `ops.mojo`.
    """
    override = os.environ.get(KERNELS_ENV)
    if override:
        folder = Path(override).expanduser().resolve()
        if not (folder / "ops.mojo").is_file():
            raise ConfigError(
                "no_kernels",
                KERNELS_ENV,
                override,
                "a folder with ops.mojo and the Mojo files it imports",
                "correct the path, or unset it to use the kernels that ship with coachwhip",
            )
        return folder
    return _first_with(
        "ops.mojo",
        [_PACKAGE / "_mojo_kernels", _CHECKOUT / "mojo_kernels"],
        "no_kernels",
        "Mojo kernels",
        f"reinstall coachwhip, or set {KERNELS_ENV} to a folder with the kernels",
    )


def small_model_dir() -> Path:
    """Returns the folder of the model used when none is named: config, weights, tokenizer.

    Raises:
        ConfigError: the model is neither in the package nor in a checkout.
    """
    return _first_with(
        "config.json",
        [_PACKAGE / "_models" / "small", _CHECKOUT / "models" / "small"],
        "no_small_model",
        "small model",
        "reinstall coachwhip, or name a model",
    )


def _first_with(file: str, folders: list[Path], code: str, field: str, fix: str) -> Path:
    for folder in folders:
        if (folder / file).is_file():
            return folder
    raise ConfigError(code, field, MISSING, " or ".join(str(f / file) for f in folders), fix)
