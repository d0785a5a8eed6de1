"""Says in one line why a model could not be downloaded, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from .errors import CheckpointError, ConfigError

_LOGIN = "set HF_TOKEN or run `hf auth login`"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


def explained(
    error: BaseException, model: str, revision: str | None
) -> ConfigError | CheckpointError:
    """Turns what a download raised into one line.

    Args:
        error: What huggingface_hub, its HTTP client or the operating system raised. The library
            wraps one error in another; the most telling of the chain decides.
        model: The hub id.
        revision: The revision asked for.
    """
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    chain = list(_chain(error))

    def first(kind: type) -> BaseException | None:
        return next((e for e in chain if isinstance(e, kind)), None)

    if found := first(errors.HFValidationError):
        return _config(
            "hub_id", "model", model, "a folder, or a hub id such as org/name", _line(found)
        )
    if first(errors.GatedRepoError):
        return _config(
            "gated_repository",
            "model",
            model,
            "open to you, and it is gated",
            f"ask for access at {hub}/{model}, then {_LOGIN}",
        )
    if first(errors.RevisionNotFoundError):
        return _config(
            "no_such_revision",
            "revision",
            revision,
            f"a branch, tag or commit of {model}",
            f"{hub}/{model} lists them",
        )
    if first(errors.RepositoryNotFoundError):
        return _config(
            "no_such_model",
            "model",
            model,
            f"a folder, or a model that {hub} has and lets you read",
            f"correct it; for a private model {_LOGIN}",
        )
    if first(errors.OfflineModeIsEnabled):
        return CheckpointError(
            model,
            "HF_HUB_OFFLINE is set, and the model is not, or not wholly, in the cache "
            f"{constants.HF_HUB_CACHE}",
            "download it once with HF_HUB_OFFLINE=0, or give a folder",
        )
    for one in chain:
        if isinstance(one, OSError) and one.errno in _FULL:
            return CheckpointError(
                constants.HF_HUB_CACHE,
                f"the disk is full, so {model} is not wholly downloaded",
                "make room, or point HF_HOME at a larger disk, and run this again",
            )
        if isinstance(one, OSError) and one.errno in _CLOSED:
            return CheckpointError(
                one.filename or constants.HF_HUB_CACHE,
                f"cannot be written: {one.strerror}",
                "point HF_HOME at a folder that you may write to",
            )
    for one in chain:
        # By name: the HTTP client is the library's choice, and all that it used name them alike.
        kinds = {kind.__name__ for kind in type(one).__mro__}
        if "ProxyError" in kinds:
            return _unreachable(model, hub, one, "check the proxy that HTTPS_PROXY names")
        if kinds & {"ReadError", "RemoteProtocolError"}:
            return CheckpointError(
                model,
                f"the connection to {hub} broke: {_line(one)}",
                "run this again; files that are complete are kept",
            )
        if "TransportError" in kinds:
            return _unreachable(model, hub, one, "check the network, or give a folder")
    if found := first(errors.HfHubHTTPError):
        status = found.response.status_code
        hint = _LOGIN if status in (401, 403) else "try again later, or give a folder"
        return CheckpointError(model, f"{hub} answers {status}: {_line(found)}", hint)
    return CheckpointError(
        model, f"cannot be downloaded: {type(error).__name__}: {_line(error)}", "run this again"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and what it came from, outermost first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _unreachable(model: str, hub: str, error: BaseException, hint: str) -> CheckpointError:
    what = _line(error) or type(error).__name__
    return CheckpointError(model, f"{hub} cannot be reached: {what}", hint)


def _config(code: str, field: str, got: object, allowed: str, hint: str) -> ConfigError:
    return ConfigError(code, field, got, allowed, hint)


def _line(error: BaseException) -> str:
    """Returns the first line of an error's text that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__).rstrip(".")
