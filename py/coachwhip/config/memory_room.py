"""How much memory slots and pages may take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import MISSING, ConfigError
from .decisions import DecisionLog
from .machine import Machine
from .options import EngineOptions
from .quantity import shown_bytes

CACHE_SHARE = 0.25
"""Share of the memory that weights leave, which each of slots and pages may take on a CPU."""
GPU_SHARE = 0.9
"""Share of a GPU's memory that weights, slots and pages may take together."""
DRAFT_MODEL_SHARE = 0.25
"""Share of memory set aside for slots and pages that a draft model gets of it."""
_NAME = "cache_memory"


@dataclass(frozen=True)
class Room:
    """Memory for slots and pages, in bytes.

    Attributes:
        total: For both together.
        each: For either.
        told: Where the numbers come from, in words.
        most: For slots and pages whose number the user gave.
        counts_given: Whether those take theirs from `total`.
        draft_model: Beside `total`, for the slots and pages of a draft model; None where those get
            what all else leaves of the machine's memory.
    """

    total: int
    each: int
    told: str
    most: int
    counts_given: bool = True
    draft_model: int | None = None


def resolve_room(
    options: EngineOptions,
    machine: Machine,
    device: str,
    weights: int,
    draft_model: bool,
    log: DecisionLog,
) -> Room:
    """Resolves `cache_memory`.

    Args:
        options: What the user set.
        machine: The machine.
        device: `cpu` or `gpu`.
        weights: Bytes of the model's weights.
        draft_model: Whether there is a draft model.
        log: Gets the decision.

    Raises:
        ConfigError: The memory that was asked for is not there.
    """
    room = _room(options, machine, device, weights, log)
    if not draft_model or not room.counts_given:
        return room
    kept = int(room.total * DRAFT_MODEL_SHARE)
    log.add("cache_memory_drafts", _NAME, kept, f"of {room.told}, a quarter for the draft model")
    left = room.total - kept
    told = f"three quarters of {room.told}"
    return replace(room, total=left, each=left, most=left, told=told, draft_model=kept)


def _room(
    options: EngineOptions, machine: Machine, device: str, weights: int, log: DecisionLog
) -> Room:
    """Returns the memory for slots and pages, those of a draft model among them."""
    wanted = options.cache_memory
    gpu = machine.gpu if device == "gpu" else None
    memory = machine.memory_bytes if gpu is None else gpu.memory_bytes
    if memory is None:
        return _unmeasured(wanted, gpu.name, log)
    owner = "this machine" if gpu is None else gpu.name
    told = f"the {shown_bytes(memory)} of {owner}"
    share = 1.0 if gpu is None or wanted is not None else GPU_SHARE
    size = int(memory * share) - weights
    if size <= 0:
        raise ConfigError(
            "weights",
            "model",
            MISSING if options.model is None else options.model,
            f"a model whose weights fit: they take {shown_bytes(weights)} of {told}",
            "use a smaller model, one of a shorter dtype, or a larger machine"
            if gpu is None
            else "use a smaller model or a larger GPU, or give device = cpu",
        )
    if wanted is not None:
        given = wanted if isinstance(wanted, int) else int(wanted * memory)
        if given > size:
            raise ConfigError(
                _NAME,
                _NAME,
                shown_bytes(given) if isinstance(wanted, int) else wanted,
                f"at most {shown_bytes(size)} of {told}, where weights take {shown_bytes(weights)}",
                "give less",
            )
        return _given(given, log)
    if gpu is None:
        each = int(size * CACHE_SHARE)
        part = f"a quarter of what weights ({shown_bytes(weights)}) leave of {told}"
        reason = f"{part} for slots, and as much for pages"
        log.add("cache_memory_default", _NAME, 2 * each, reason)
        return Room(2 * each, each, part, size, counts_given=False)
    reason = f"nine tenths of {told}, less the weights' {shown_bytes(weights)}"
    log.add("cache_memory_default", _NAME, size, reason)
    return Room(size, size, f"{shown_bytes(size)} ({reason})", size)


def _unmeasured(wanted: int | float | None, gpu: str, log: DecisionLog) -> Room:
    """Returns the memory on a GPU that does not tell how much it has."""
    if not isinstance(wanted, int):
        raise ConfigError(
            "gpu_memory",
            _NAME,
            MISSING if wanted is None else wanted,
            f"bytes, since the memory of {gpu} is not known",
            "give cache_memory = 8GiB, for example",
        )
    return _given(wanted, log)


def _given(size: int, log: DecisionLog) -> Room:
    log.add("cache_memory_given", _NAME, size, f"as asked for, {shown_bytes(size)}")
    return Room(size, size, f"{_NAME} = {shown_bytes(size)}", size)
