"""Resolves `speculative_config`: which drafter, and how many drafts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from coachwhip_graphs.spec import ModelSpec

from ..errors import MISSING, ConfigError

if TYPE_CHECKING:
    from .options import EngineOptions

METHODS = ("mtp", "ngram", "draft_model", "custom")
MOST_DRAFTS = 32
"""Largest `num_speculative_tokens`."""
SHORT_FORMS = {
    "spec_method": "method",
    "spec_tokens": "num_speculative_tokens",
    "spec_model": "model",
}
"""Options, and the keys of `speculative_config` that they are short for."""
_FIELD = "speculative_config"


@dataclass(frozen=True)
class Speculation:
    """A drafter and its settings; the keys of `speculative_config`, under vLLM's names."""

    method: str
    """mtp (the model's own head), ngram (prompt lookup), draft_model or custom."""
    num_speculative_tokens: int
    """Most drafts of a request in a step."""
    model: str | None = None
    """Folder or hub id of the draft model."""
    prompt_lookup_max: int = 4
    """Most tokens of the n-gram that is looked up."""
    prompt_lookup_min: int = 1
    """Fewest tokens of it."""
    adaptive: bool = True
    """Draft less, or not at all, where drafts measurably cost more than they save."""


def resolve_speculation(
    spec: ModelSpec, options: EngineOptions, max_model_len: int
) -> tuple[Speculation | None, tuple[str, ...]]:
    """Returns what the options ask for (None: no speculation), and warnings, one line each.

    Args:
        spec: The model.
        options: What the user set.
        max_model_len: Most tokens of a request.

    Raises:
        ConfigError: A key is unknown, a value out of range, or the drafter cannot run.
    """
    values = _collect(options)
    if values is None:
        if options.drafter is not None:
            raise ConfigError(
                "drafter",
                _FIELD,
                MISSING,
                'method "custom" beside drafter',
                'give {"method": "custom", "num_speculative_tokens": K}',
            )
        return None, ()
    method = values.get("method")
    if method is None and spec.mtp_layers and "model" not in values:
        values["method"] = method = "mtp"
    if method not in METHODS:
        near = difflib.get_close_matches(str(method), METHODS, n=1)
        raise _error(
            "method",
            MISSING if method is None else method,
            " or ".join(METHODS),
            f"did you mean {near[0]}?" if near else "ngram needs neither a head nor a second model",
        )
    if "num_speculative_tokens" not in values:
        raise _error("num_speculative_tokens", MISSING, f"1 to {MOST_DRAFTS}", "3 is a good start")
    _whole(values, "num_speculative_tokens", 1, MOST_DRAFTS)
    _check_drafter(spec, options, values)
    if method == "ngram":
        for name in ("prompt_lookup_max", "prompt_lookup_min"):
            _whole(values, name, 1, 64)
        least = values.setdefault("prompt_lookup_min", 1)
        most = values.setdefault("prompt_lookup_max", max(least, Speculation.prompt_lookup_max))
        if least > most:
            raise _error(
                "prompt_lookup_min", least, f"at most prompt_lookup_max, {most}", f"give {most}"
            )
    if not isinstance(values.get("adaptive", True), bool):
        raise _error("adaptive", values["adaptive"], "true or false", "leave it out for true")
    found = Speculation(**values)
    return found, _check_room(options, found.num_speculative_tokens, max_model_len)


def _collect(options: EngineOptions) -> dict[str, object] | None:
    """Merges `speculative_config` and its short forms."""
    config = options.speculative_config
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            "speculative_config",
            _FIELD,
            config,
            "a JSON object",
            'give {"method": "mtp", "num_speculative_tokens": 3}',
        )
    known = [f.name for f in fields(Speculation)]
    for name in config or {}:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise _error(
                name,
                config[name],
                f"one of the keys {', '.join(known)}",
                f"did you mean {near[0]}?" if near else "leave it out",
            )
    values = dict(config or {})
    for short, name in SHORT_FORMS.items():
        value = getattr(options, short)
        if value is None:
            continue
        if values.get(name, value) != value:
            raise ConfigError(
                "speculative_config",
                short,
                value,
                f"the same as {_FIELD}.{name}, {values[name]}",
                "drop one of the two",
            )
        values[name] = value
    return None if config is None and not values else values


def _check_drafter(spec: ModelSpec, options: EngineOptions, values: dict[str, object]) -> None:
    method = values["method"]
    if method == "mtp" and not spec.mtp_layers:
        raise _error(
            "method",
            method,
            "ngram, draft_model or custom, since the model has no multi-token-prediction head "
            "(num_nextn_predict_layers is 0 or missing in its config.json)",
            "ngram needs nothing beside the model",
        )
    if method == "draft_model" and not isinstance(values.get("model"), str):
        raise _error(
            "model", values.get("model", MISSING), "a folder or hub id", "name the draft model"
        )
    if method != "draft_model" and values.get("model") is not None:
        raise _error(
            "model", values["model"], f"unset with method {method}", "did you mean draft_model?"
        )
    for name in ("prompt_lookup_max", "prompt_lookup_min"):
        if method != "ngram" and name in values:
            raise _error(name, values[name], f"unset with method {method}", "leave it out")
    if (method == "custom") != (options.drafter is not None):
        raise ConfigError(
            "drafter",
            "drafter",
            MISSING if options.drafter is None else type(options.drafter).__name__,
            "an object with propose(request_id, token_ids, k) where the method is custom, and only "
            "there",
            "give both, or neither",
        )
    if options.drafter is not None and not callable(getattr(options.drafter, "propose", None)):
        raise ConfigError(
            "drafter",
            "drafter",
            type(options.drafter).__name__,
            "an object with propose(request_id, token_ids, k)",
            "add that method; it returns up to k token ids",
        )


def _check_room(options: EngineOptions, drafts: int, max_model_len: int) -> tuple[str, ...]:
    """Refuses drafts that no request can hold; warns of those that no step can."""
    if 1 + drafts >= max_model_len:
        raise _error(
            "num_speculative_tokens",
            drafts,
            f"below max_model_len - 1, which is {max_model_len - 1}",
            "give fewer",
        )
    return tuple(
        f"{_FIELD}.num_speculative_tokens is {drafts}, but {name} = {room} leaves room for at most "
        f"{room - 1} drafts in a step; give {name} = {1 + drafts} or more"
        for name in ("max_num_batched_tokens", "num_state_slots")
        if (room := getattr(options, name)) is not None and 1 + drafts > room
    )


def _whole(values: dict[str, object], name: str, low: int, high: int) -> None:
    value = values.get(name, low)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _error(name, value, f"a whole number from {low} to {high}", f"give {low} to {high}")


def _error(name: object, value: object, expected: str, fix: str) -> ConfigError:
    return ConfigError("speculation", f"{_FIELD}.{name}", value, expected, fix)
