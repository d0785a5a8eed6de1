"""Resolves options against a model and a machine: one final value, and one reason, for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from coachwhip_graphs.spec import LayerKind, ModelSpec

from ..errors import ConfigError
from .caching import (
    DEFAULT_BLOCK,
    DEFAULT_BUDGET,
    Caching,
    Chunking,
    resolve_caching,
    resolve_chunking,
)
from .decisions import Decision, DecisionLog
from .engine_config import EngineConfig
from .machine import Machine
from .memory_room import Room, resolve_room
from .options import EngineOptions
from .origins import place_of
from .pool_sizes import Needs, resolve_pools
from .quantity import shown_bytes
from .row_bytes import RowBytes, page_bytes, slot_parts, weight_bytes
from .speculation import SHORT_FORMS, Speculation, resolve_speculation
from .step_loops import resolve_loop

DEFAULT_MODEL_LEN = 8192
"""Length in tokens for models whose config names none."""


@dataclass(frozen=True)
class Resolution:
    """What became of options.

    Attributes:
        config: The configuration; None where there are conflicts.
        conflicts: What keeps it from being one.
        decisions: Those that were made, conflicts or not.
        row_bytes: Bytes of a slot, a page and the weights.
        room: Memory for slots and pages; None where a conflict is about that.
    """

    config: EngineConfig | None
    conflicts: tuple[ConfigError, ...]
    decisions: tuple[Decision, ...]
    row_bytes: RowBytes
    room: Room | None

    def without_conflicts(self) -> EngineConfig:
        """Returns the configuration.

        Raises:
            ConfigError: The first of the conflicts.
        """
        if self.config is None:
            raise self.conflicts[0]
        return self.config


def resolve(
    spec: ModelSpec, checkpoint_dtype: str, options: EngineOptions, machine: Machine
) -> EngineConfig:
    """Resolves options against a model and a machine; the same for the same arguments.

    Args:
        spec: The model.
        checkpoint_dtype: `float32`, `bfloat16` or `float16`, as the checkpoint says.
        options: What the user set.
        machine: What it has to fit.

    Raises:
        ConfigError: A value does not fit the model, the machine or another one; the message names
            them, and where an option was read from.
    """
    return examine(spec, checkpoint_dtype, options, machine).without_conflicts()


def examine(
    spec: ModelSpec, checkpoint_dtype: str, options: EngineOptions, machine: Machine
) -> Resolution:
    """Resolves options as `resolve` does, but returns all conflicts instead of raising one."""
    log, conflicts = DecisionLog(), _Conflicts(options)
    device, dtype, length = "cpu", "float32", spec.max_position_embeddings or DEFAULT_MODEL_LEN
    chunking = Chunking(True, options.max_num_batched_tokens or DEFAULT_BUDGET)
    caching, speculation = Caching("none", DEFAULT_BLOCK), None
    with conflicts.of_one_rule():
        device = _device(options, machine, log)
    dtype = _dtype(options, checkpoint_dtype, log)
    ssm, kv = _cache_dtypes(spec, options, dtype, log)
    with conflicts.of_one_rule():
        length = _model_length(spec, options, log)
    with conflicts.of_one_rule():
        chunking = resolve_chunking(options, length, log)
    with conflicts.of_one_rule():
        caching = resolve_caching(spec, options, length, chunking.budget, log)
    with conflicts.of_one_rule():
        speculation = _speculation(spec, options, length, log)
    with conflicts.of_one_rule():
        _check_audit(options, (dtype, ssm, kv))
    row_bytes = _row_bytes(spec, options.kv_cache_page_size, (dtype, ssm, kv), device, speculation)
    slots, pages, room = 0, 0, None
    with conflicts.of_one_rule():
        drafts = speculation is not None and speculation.method == "draft_model"
        room = resolve_room(options, machine, device, row_bytes.weights, drafts, log)
        needs = Needs(
            options.max_num_seqs,
            1 + (0 if speculation is None else speculation.num_speculative_tokens),
            length,
            options.kv_cache_page_size,
            caching.block,
            caching.mode != "none",
        )
        slots, pages = resolve_pools(needs, row_bytes, options, room, log)
        _check_memory(row_bytes, slots, pages, machine, device, log)
    kept = _kept(spec, options, log)
    loop = resolve_loop(options.step_loop, _features(options, chunking, caching, speculation), log)
    config = None
    if not conflicts.found:
        config = EngineConfig(
            **kept,
            dtype=dtype,
            device=device,
            max_model_len=length,
            max_num_batched_tokens=chunking.budget,
            enable_chunked_prefill=chunking.chunked,
            mamba_ssm_cache_dtype=ssm,
            kv_cache_dtype=kv,
            num_state_slots=slots,
            num_kv_pages=pages,
            mamba_cache_mode=caching.mode,
            mamba_block_size=caching.block,
            step_loop=loop,
            speculation=speculation,
            warnings=log.warnings,
            decisions=tuple(log.decisions),
        )
    return Resolution(config, tuple(conflicts.found), tuple(log.decisions), row_bytes, room)


@dataclass
class _Conflicts:
    """Collects what keeps options from being a configuration, each with its option's origin."""

    options: EngineOptions
    found: list[ConfigError] = field(default_factory=list)

    @contextmanager
    def of_one_rule(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            self.found.append(self._placed(error))

    def _placed(self, error: ConfigError) -> ConfigError:
        name, _, key = error.field.partition(".")
        shorts = [s for s, k in SHORT_FORMS.items() if k == key and name == "speculative_config"]
        if shorts and getattr(self.options, shorts[0]) is not None:
            (name,) = shorts
        value = getattr(self.options, name, None)
        place = place_of(self.options.origins, name, value)
        if error.source is not None or place is None:
            return error
        return ConfigError(error.code, error.field, error.got, error.allowed, error.hint, place)


def _device(options: EngineOptions, machine: Machine, log: DecisionLog) -> str:
    wanted = options.device
    if wanted == "gpu" and machine.gpu is None:
        raise ConfigError("no_gpu", "device", "gpu", "cpu", "there is no GPU on this machine")
    if wanted != "auto":
        log.add("device_given", "device", wanted, "as asked for")
        return wanted
    found = "cpu" if machine.gpu is None else "gpu"
    reason = "there is no GPU" if machine.gpu is None else f"there is one: {machine.gpu.name}"
    log.add("device_auto", "device", found, reason)
    return found


def _dtype(options: EngineOptions, checkpoint_dtype: str, log: DecisionLog) -> str:
    if options.dtype != "auto":
        log.add("dtype_given", "dtype", options.dtype, "as asked for")
        return options.dtype
    if checkpoint_dtype == "float16":
        reason = "the checkpoint is float16, whose range is too small for some activations"
        log.add("dtype_widened", "dtype", "float32", reason)
        return "float32"
    log.add("dtype_auto", "dtype", checkpoint_dtype, "the checkpoint's")
    return checkpoint_dtype


def _cache_dtypes(
    spec: ModelSpec, options: EngineOptions, dtype: str, log: DecisionLog
) -> tuple[str, str]:
    """Returns the types of stored SSM states, and of keys and values."""
    found = []
    for name, auto, why, kind, layers in (
        (
            "mamba_ssm_cache_dtype",
            "float32",
            "the only type without measurable error",
            LayerKind.MAMBA2,
            "Mamba",
        ),
        ("kv_cache_dtype", dtype, "the model's", LayerKind.ATTENTION, "attention"),
    ):
        wanted = getattr(options, name)
        value, used = auto if wanted == "auto" else wanted, bool(spec.count(kind))
        found.append(value)
        if wanted != "auto" and not used:
            line = f"{name} = {wanted} has no effect: the model has no {layers} layers"
            log.warn(f"no_{layers.lower()}", name, value, line)
        elif wanted == "auto":
            log.add("cache_dtype_auto", name, value, why)
        else:
            log.add(
                "cache_dtype_given", name, value, _SSM_ERRORS.get((name, value), "as asked for")
            )
    return found[0], found[1]


_SSM_ERRORS = {
    ("mamba_ssm_cache_dtype", "float16"): "as asked for; relative error 3.8e-4 after 2,048 steps",
    ("mamba_ssm_cache_dtype", "bfloat16"): "as asked for; relative error 2.4e-2 after 2,048 steps",
}


def _model_length(spec: ModelSpec, options: EngineOptions, log: DecisionLog) -> int:
    name, limit, wanted = "max_model_len", spec.max_position_embeddings, options.max_model_len
    if wanted is None and limit is None:
        reason = "the default, since the model names no limit"
        log.add("length_default", name, DEFAULT_MODEL_LEN, reason)
        return DEFAULT_MODEL_LEN
    if wanted is None:
        log.add("length_of_model", name, limit, "the model's max_position_embeddings")
        return limit
    if limit is not None and wanted > limit:
        raise ConfigError(
            "model_length",
            name,
            wanted,
            f"at most {limit}, the model's max_position_embeddings",
            f"give {limit} or less",
        )
    log.add("length_given", name, wanted, "as asked for")
    return wanted


def _speculation(
    spec: ModelSpec, options: EngineOptions, length: int, log: DecisionLog
) -> Speculation | None:
    found, warnings = resolve_speculation(spec, options, length)
    if found is None:
        log.add("no_speculation", "speculative_config", None, "none was asked for")
        return None
    drafts = found.num_speculative_tokens
    reason = f"as asked for: up to {drafts} drafts of {found.method} for each request and step"
    if found.method == "mtp":
        reason += "; the head's one depth is used again for deeper drafts"
    elif found.method == "draft_model":
        reason += "; that model's own weights, slots and pages are not counted here"
    log.add("speculation", "speculative_config", f"{found.method}, {drafts}", reason)
    for line in warnings:
        log.warn("speculation_room", "speculative_config", f"{found.method}, {drafts}", line)
    return found


def _check_audit(options: EngineOptions, dtypes: tuple[str, str, str]) -> None:
    if options.audit_state and set(dtypes) != {"float32"}:
        dtype, ssm, kv = dtypes
        raise ConfigError(
            "audit_dtype",
            "audit_state",
            True,
            f"off in {dtype} with {ssm} states and {kv} pages: only float32 is bit-equal",
            "give dtype = float32, or leave audit_state out",
        )


def _row_bytes(
    spec: ModelSpec,
    page_size: int,
    dtypes: tuple[str, str, str],
    device: str,
    speculation: Speculation | None,
) -> RowBytes:
    dtype, ssm, kv = dtypes
    head = speculation is not None and speculation.method == "mtp"
    slot, page = slot_parts(spec, dtype, ssm, head), page_bytes(spec, page_size, kv, head)
    return RowBytes(slot, page, weight_bytes(spec, dtype, device))


def _check_memory(
    row_bytes: RowBytes, slots: int, pages: int, machine: Machine, device: str, log: DecisionLog
) -> None:
    """Warns where a CPU's memory does not hold all; what is not used takes none of it."""
    pools = slots * row_bytes.slot.total + pages * row_bytes.page
    left = machine.memory_bytes - row_bytes.weights
    if device == "gpu" or pools <= left:
        return
    log.warn(
        "memory_exceeded",
        "cache_memory",
        pools,
        f"weights take {shown_bytes(row_bytes.weights)}, slots and pages up to "
        f"{shown_bytes(pools)}: more than the {shown_bytes(machine.memory_bytes)} of this machine, "
        f"and the system may end a process that uses all of it; give cache_memory = "
        f"{left >> 20}MiB or less",
    )


def _features(
    options: EngineOptions,
    chunking: Chunking,
    caching: Caching,
    speculation: Speculation | None,
) -> list[str]:
    """Returns the features that a step loop must have, as `step_loops.FEATURES` names them."""
    used = {
        "prefix caching": caching.mode != "none",
        "chunked prefill": chunking.chunked,
        "priorities": options.scheduling_policy != "fcfs",
        "speculation": speculation is not None,
        "audit_state": options.audit_state,
    }
    return [name for name, uses in used.items() if uses]


def _kept(spec: ModelSpec, options: EngineOptions, log: DecisionLog) -> dict[str, object]:
    """Returns the values that nothing else has a say in."""
    for name in ("max_num_seqs", "kv_cache_page_size", "scheduling_policy"):
        value, given = getattr(options, name), options.is_given(name)
        if given and name == "kv_cache_page_size" and not spec.count(LayerKind.ATTENTION):
            line = f"{name} = {value} has no effect: the model has no attention layers"
            log.warn("no_attention", name, value, line)
        elif given:
            log.add("given", name, value, "as asked for")
        else:
            log.add("default", name, value, "the default")
    names = ("max_num_seqs", "kv_cache_page_size", "scheduling_policy", "audit_state")
    return {name: getattr(options, name) for name in (*names, "check_finite")}
