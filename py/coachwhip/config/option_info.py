"""What there is to know about each option: its kind, its values, its default, its spellings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_origin

from .options import MOST_IDS, OPTION_NAMES, EngineOptions

ALIASES = {"max_length": "max_model_len", "max_batch_size": "max_num_seqs"}
"""MAX's spellings of options -> ours, which are vLLM's; both are taken everywhere."""
_OBJECTS = {"speculative_config": "json", "drafter": "object"}


@dataclass(frozen=True)
class OptionInfo:
    """One option.

    Attributes:
        name: Its name in Python; dashes for underscores make the flag.
        kind: `choice`, `whole` (a number), `switch` (true or false, with `optional` also auto),
            `text`, `memory`, `json` or `object`.
        default: What an unset option has.
        optional: None is among its values, and stands for unset.
        help: One or more sentences.
        choices: Values of a choice.
        least: Smallest whole number; None for no limit.
        most: Largest one.
        multiple: What it must be a multiple of.
    """

    name: str
    kind: str
    default: Any
    optional: bool
    help: str
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    multiple: int = 1

    @property
    def allowed(self) -> str:
        """What it may be, as in an error."""
        if self.kind == "choice":
            return " or ".join(self.choices)
        if self.kind == "switch":
            return "true, false or auto" if self.optional else "true or false"
        if self.kind == "whole":
            return self._whole
        return {
            "text": "text",
            "memory": "an amount of memory",
            "json": "a JSON object",
            "object": "an object with propose(request_id, token_ids, k)",
        }[self.kind]

    @property
    def _whole(self) -> str:
        text = "a whole number"
        if self.multiple > 1:
            text = f"a multiple of {self.multiple}"
        elif self.least is not None:
            text += f" from {self.least}"
        return text if self.most in (None, MOST_IDS) else f"{text} to {self.most}"


def _infos() -> Iterator[OptionInfo]:
    described = EngineOptions.__pydantic_fields__
    defaults = {f.name: f.default for f in fields(EngineOptions)}
    for name in OPTION_NAMES:
        info = described[name]
        hint, metadata = info.annotation, list(info.metadata)
        parts = get_args(hint) if type(None) in get_args(hint) else (hint,)
        optional = defaults[name] is None
        (core,) = [p for p in parts if p is not type(None)] if len(parts) < 3 else [hint]
        if get_origin(core) is Annotated:
            core, *more = get_args(core)
            metadata += [m for f in more for m in getattr(f, "metadata", ())]
        limits = {type(m).__name__: m for m in metadata}
        yield OptionInfo(
            name,
            _kind(name, core),
            defaults[name],
            optional,
            " ".join((info.description or "").split()),
            choices=get_args(core) if get_origin(core) is Literal else (),
            least=limits["Ge"].ge if "Ge" in limits else None,
            most=limits["Le"].le if "Le" in limits else None,
            multiple=limits["MultipleOf"].multiple_of if "MultipleOf" in limits else 1,
        )


def _kind(name: str, core: object) -> str:
    if name in _OBJECTS:
        return _OBJECTS[name]
    if get_origin(core) is Literal:
        return "choice"
    return {bool: "switch", int: "whole", str: "text"}.get(core, "memory")


OPTIONS: dict[str, OptionInfo] = {info.name: info for info in _infos()}
"""All options by name, in the order of `EngineOptions`."""
