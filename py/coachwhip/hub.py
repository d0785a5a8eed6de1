"""Finds a model: a folder, or a hub id whose files are downloaded once and then kept.

A hub id (`org/name`) goes through huggingface_hub, with its cache, its environment variables
(`HF_HOME`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN`) and the token that `hf auth login` stores.
The small files come first, so that a model that coachwhip does not run is refused before its
weights are fetched. A connection that drops is taken up again near where it broke; after a download
that ended early, files that were complete are not fetched again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from .errors import CheckpointError, ConfigError
from .hub_errors import explained

CONFIG_FILES = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
)
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json")
_SUBFOLDERS = "*/*"

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def is_hub_id(model: str) -> bool:
    """Says whether `model` is spelled like a hub id: two names with one slash between them."""
    return _HUB_ID.fullmatch(model) is not None


def resolve_model(model: str | PathLike[str], revision: str | None = None) -> Path:
    """Returns the folder of a model, after downloading it if need be.

    An existing folder wins over a hub id of the same spelling; what is not spelled like a hub id
    is taken as a path, `~` being the user's home, and returned for the loader to open or refuse.

    Args:
        model: A path or a hub id.
        revision: Branch, tag or commit of a hub id; None is its main branch.

    Raises:
        ConfigError: There is no such repository or revision, or it is closed to this user; or a
            revision is given for a folder; or the model's config asks for what is not supported.
        CheckpointError: The hub cannot be reached, or the files cannot be downloaded or stored.
    """
    if not isinstance(model, str) or os.path.exists(model) or not is_hub_id(model):
        refuse_revision(model, revision)
        return Path(os.path.expanduser(model))
    return _from_hub(model, revision, CONFIG_FILES + WEIGHT_FILES)


def resolve_config(model: str | PathLike[str], revision: str | None = None) -> Path:
    """Returns the folder of a model as `resolve_model` does, without downloading its weights."""
    if not isinstance(model, str) or os.path.exists(model) or not is_hub_id(model):
        return resolve_model(model, revision)
    return _from_hub(model, revision, CONFIG_FILES)


def _from_hub(model: str, revision: str | None, files: tuple[str, ...]) -> Path:
    try:
        with _quiet_library():
            return _download(model, revision, files)
    except (ConfigError, CheckpointError):
        raise
    except Exception as error:  # the library, its HTTP client and the disk raise many kinds
        raise explained(error, model, revision) from error


def refuse_revision(model: object, revision: str | None) -> None:
    """Raises ConfigError when a revision is given for a model that is not on the hub."""
    if revision is not None:
        where = "the small model" if model is None else f"{model}"
        raise ConfigError(
            "revision_of_folder",
            "revision",
            revision,
            "unset for a model in a folder",
            f"{where} is no hub id; leave revision out",
        )


def _download(model: str, revision: str | None, files: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    unreachable = _first_contact(model, revision)

    def fetch(patterns: tuple[str, ...], at: str | None) -> Path:
        found = snapshot_download(
            model,
            revision=at,
            allow_patterns=list(patterns),
            ignore_patterns=_SUBFOLDERS,
            local_files_only=unreachable is not None,
            tqdm_class=_progress_bar(),
        )
        return Path(found)

    try:
        folder = fetch(CONFIG_FILES, revision)
        if not (folder / "config.json").is_file():
            raise CheckpointError(
                model, "holds no config.json", "name a model in Hugging Face format"
            )
        if files == CONFIG_FILES:
            return folder
        _check_config(folder)
        # The folder is named after its commit: the weights are of the same one.
        folder = fetch(files, folder.name)
        if unreachable is not None and not any(folder.glob("*.safetensors")):
            # Without the hub the library is content with what its cache has, however little.
            raise unreachable
        return folder
    except FileNotFoundError:
        # Not, or not all, in the cache: what kept us from the hub is the reason.
        if unreachable is not None:
            raise unreachable from None
        raise


def _first_contact(model: str, revision: str | None) -> Exception | None:
    """Asks the hub for the model; returns the error when only the cache can help.

    The library falls back to its cache as well, but waits for a silent network without a limit.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        HfApi().model_info(model, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except RevisionNotFoundError:
        raise
    except OSError as error:  # the hub said no, or this process is offline
        return error
    except Exception as error:
        if "TransportError" in {kind.__name__ for kind in type(error).__mro__}:
            return error
        raise
    return None


def _check_config(folder: Path) -> None:
    """Raises ConfigError when the model is not supported; its weights need not be there."""
    from .checkpoint import read_model

    try:
        read_model(folder)
    except CheckpointError:
        return  # the loader says what is missing or broken once everything is there


def _progress_bar() -> type:
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        """The library's progress bar, on a terminal only."""

        def __init__(self, *args, **kwargs) -> None:
            if not sys.stderr.isatty():
                kwargs["disable"] = True
            super().__init__(*args, **kwargs)

    return Bar


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Keeps the library's notes of retries off stderr, unless HF_HUB_VERBOSITY asks for them."""
    from huggingface_hub.utils import logging

    before = logging.get_verbosity()
    if not os.environ.get("HF_HUB_VERBOSITY"):
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
