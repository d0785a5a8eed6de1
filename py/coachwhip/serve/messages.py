"""What the HTTP side and the engine process say to each other: msgpack, decoded by type."""

from __future__ import annotations

import msgspec

from ..cache.prefix_tree import TreeNode
from ..metrics import Metrics
from ..sampling.params import SamplingParams


class Start(msgspec.Struct, tag=True):
    """The first message: which engine to make. Names of `EngineOptions` -> values."""

    options: dict[str, object]


class Add(msgspec.Struct, tag=True):
    """Queue a request; the arguments are those of `Engine.add_request`."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None


class Abort(msgspec.Struct, tag=True):
    """End requests at once; nothing more is said about them."""

    request_ids: list[str]


class ResetCache(msgspec.Struct, tag=True):
    """Forget all cached prefixes; answered with `Done`."""

    number: int


class Look(msgspec.Struct, tag=True):
    """Ask for the engine's metrics; answered with `Seen`."""

    number: int
    tree_nodes: int = 0
    """Most nodes of the prefix tree to send along."""


Command = Start | Add | Abort | ResetCache | Look


class Ready(msgspec.Struct, tag=True):
    """The engine is loaded and steps can run."""

    metrics: Metrics


class Update(msgspec.Struct, omit_defaults=True):
    """What is new of one request since the last update."""

    request_id: str
    text: str = ""
    """Text that no stop string can take back any more."""
    token_ids: list[int] = []
    logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None
    num_cached_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    finish_reason: str | None = None
    """Set with the last update only."""
    stop_reason: int | str | None = None
    metrics: dict[str, float] = {}
    error: str | None = None


class Updates(msgspec.Struct, tag=True):
    """What one or more steps brought; may be empty, and then says that the engine works."""

    updates: list[Update]


class Refused(msgspec.Struct, tag=True):
    """A request that was not queued: the field, its value as text, and why."""

    request_id: str
    field: str
    got: str
    message: str


class Done(msgspec.Struct, tag=True):
    """A command was carried out."""

    number: int


class Seen(msgspec.Struct, tag=True):
    """The engine at one moment."""

    number: int
    metrics: Metrics
    tree: list[TreeNode]


class Failed(msgspec.Struct, tag=True):
    """The engine cannot be made; the process ends. `exit_code` is the command line's."""

    message: str
    exit_code: int


Event = Ready | Updates | Refused | Done | Seen | Failed
