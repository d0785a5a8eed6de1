"""Options of the engine, and their resolution against a model and a machine.

`EngineOptions` is what a user may set; `resolve` turns it into an `EngineConfig` in which nothing
is left open, or raises a `ConfigError` before any weight is read. Neither imports max or torch.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from coachwhip_graphs.spec import LayerKind, ModelSpec

from .caching_config import CACHE_MODES, DEFAULT_BLOCK, Caching, resolve_caching, slot_bytes
from .errors import MISSING, ConfigError
from .speculation_config import Speculation, resolve_speculation

DTYPES = ("auto", "float32", "bfloat16")
SSM_DTYPES = ("auto", "float32", "float16", "bfloat16")
DEVICES = ("auto", "cpu", "gpu")
POLICIES = ("fcfs", "priority")
DEFAULT_MODEL_LEN = 8192
"""Length in tokens for models whose config names none."""
CACHE_SHARE = 0.25
"""Share of the machine's memory that each of state slots and pages may take when no number of them
is given."""
MOST_IDS = 2**31 - 1
"""Slots and pages are named by int32 ids."""
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class EngineOptions:
    """What a user may set; the command line has each under the same name with dashes."""

    model: str | None = None
    """Folder of a checkpoint, or a hub id; None is the small model that ships with the package."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; None is its main branch."""
    dtype: str = "auto"
    """Type of weights and activations; auto is the checkpoint's (float32 for float16 files)."""
    device: str = "auto"
    """cpu or gpu; auto is the GPU if MAX sees one."""
    max_model_len: int | None = None
    """Most tokens of a request, prompt and text; None is the model's own limit."""
    max_num_seqs: int = 8
    """Most requests that run at a time."""
    max_num_batched_tokens: int = 512
    """Most rows of a step; longer prompts are processed in chunks."""
    mamba_ssm_cache_dtype: str = "auto"
    """Type of stored SSM states; auto is float32, the only one without measurable error."""
    kv_cache_dtype: str = "auto"
    """Type of keys and values; auto is the model's dtype."""
    kv_cache_page_size: int = 16
    """Tokens per page, a multiple of 8."""
    num_kv_pages: int | None = None
    """Pages of the pool; None is enough for max_num_seqs requests of max_model_len, twice that with
    prefix caching, as far as a quarter of the machine's memory allows."""
    enable_prefix_caching: bool | None = None
    """Restore the states and pages of prefixes that were computed before; None is on."""
    mamba_cache_mode: str = "auto"
    """Which states become checkpoints: none, align (where prompt chunks end) or all (the whole
    grid); auto is all."""
    mamba_block_size: int | None = None
    """The grid of checkpoints in tokens, from 4; None is 64, less for a small max_model_len."""
    num_state_slots: int | None = None
    """Slots of the pool; None is one for each of max_num_seqs requests, and with prefix caching
    checkpoints as far as a quarter of the machine's memory allows."""
    scheduling_policy: str = "fcfs"
    """fcfs, or priority: lower priorities first, preempting others where they must."""
    speculative_config: Mapping[str, object] | None = None
    """Drafts that are verified together, `{"method": "mtp", "num_speculative_tokens": 3}`; see
    `Speculation` for the keys. None generates token by token."""
    spec_method: str | None = None
    """Short for the method of `speculative_config`."""
    spec_tokens: int | None = None
    """Short for its num_speculative_tokens."""
    spec_model: str | None = None
    """Short for its model."""
    drafter: object | None = None
    """With method custom: an object with propose(request_id, token_ids, k), which returns up to k
    drafts after the tokens."""
    seed: int | None = None
    """Decides the seeds of sampled requests that give none; None draws them."""
    audit_state: bool = False
    """Recompute and compare every checkpoint when it is published and when it is restored; slow,
    for debugging, in float32 only."""
    check_finite: bool = True
    """Look for NaN and infinity among the weights while loading, and warn."""


@dataclass(frozen=True)
class EngineConfig:
    """Resolved options: every value is final and consistent with the model."""

    dtype: str
    device: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    mamba_ssm_cache_dtype: str
    kv_cache_dtype: str
    kv_cache_page_size: int
    num_state_slots: int
    num_kv_pages: int
    check_finite: bool
    mamba_cache_mode: str = "none"
    mamba_block_size: int = DEFAULT_BLOCK
    scheduling_policy: str = "fcfs"
    speculation: Speculation | None = None
    audit_state: bool = False
    warnings: tuple[str, ...] = ()
    """What the user should know about these options, one line each."""

    @property
    def copies_pages(self) -> bool:
        """Whether a hit may copy a page: its checkpoint lies between two page ends, or the draft
        head computes its last row anew."""
        cached = self.mamba_cache_mode != "none" and self.num_state_slots and self.num_kv_pages
        between = self.mamba_block_size % self.kv_cache_page_size
        return bool(cached and (between or self.runs_head))

    @property
    def runs_head(self) -> bool:
        """Whether the model's multi-token-prediction head runs."""
        return self.speculation is not None and self.speculation.method == "mtp"

    @property
    def most_drafts(self) -> int:
        """Most drafts of a request in a step."""
        return 0 if self.speculation is None else self.speculation.num_speculative_tokens

    @property
    def audit_slots(self) -> int:
        """Slots beside the pool in which states are recomputed."""
        return int(self.audit_state and self.num_state_slots > 0)

    @property
    def audit_pages(self) -> int:
        """Pages beside the pool for the same."""
        if not self.audit_state or not self.num_kv_pages:
            return 0
        return -(-self.max_model_len // self.kv_cache_page_size)


def options_from(values: dict[str, object]) -> EngineOptions:
    """Makes options from keyword arguments.

    Raises:
        ConfigError: A name is unknown; the message names the nearest known one.
    """
    known = [f.name for f in fields(EngineOptions)]
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError("unknown_option", name, value, "an option of the engine", hint)
    return EngineOptions(**values)


def resolve(
    spec: ModelSpec, checkpoint_dtype: str, options: EngineOptions, *, gpu_present: bool
) -> EngineConfig:
    """Resolves options against a model.

    Args:
        spec: The model.
        checkpoint_dtype: `float32`, `bfloat16` or `float16`, as the checkpoint says.
        options: What the user set.
        gpu_present: Whether MAX sees a GPU.

    Raises:
        ConfigError: A value is out of range or does not fit the model.
    """
    _one_of("dtype", options.dtype, DTYPES)
    _one_of("device", options.device, DEVICES)
    _one_of("mamba_ssm_cache_dtype", options.mamba_ssm_cache_dtype, SSM_DTYPES)
    _one_of("kv_cache_dtype", options.kv_cache_dtype, DTYPES)
    for name in ("max_num_seqs", "max_num_batched_tokens", "kv_cache_page_size"):
        _positive(name, getattr(options, name))
    _one_of("mamba_cache_mode", options.mamba_cache_mode, CACHE_MODES)
    _one_of("scheduling_policy", options.scheduling_policy, POLICIES)
    if options.max_model_len is not None:
        _positive("max_model_len", options.max_model_len, 2)
    for name in ("num_kv_pages", "mamba_block_size", "num_state_slots"):
        if getattr(options, name) is not None:
            _positive(name, getattr(options, name))
    if options.device == "gpu" and not gpu_present:
        raise ConfigError("no_gpu", "device", "gpu", "cpu", "MAX sees no GPU on this machine")
    if options.kv_cache_page_size % 8:
        raise ConfigError(
            "page_size",
            "kv_cache_page_size",
            options.kv_cache_page_size,
            "a multiple of 8",
            f"give {-(-options.kv_cache_page_size // 8) * 8}",
        )
    dtype = options.dtype
    if dtype == "auto":
        dtype = "float32" if checkpoint_dtype == "float16" else checkpoint_dtype
    length = _model_length(spec, options)
    ssm = "float32" if options.mamba_ssm_cache_dtype == "auto" else options.mamba_ssm_cache_dtype
    kv = dtype if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    caching = resolve_caching(spec, options, length)
    speculation, draft_warnings = resolve_speculation(spec, options, length)
    head = speculation is not None and speculation.method == "mtp"
    if options.seed is not None and (
        not isinstance(options.seed, int) or isinstance(options.seed, bool)
    ):
        raise ConfigError("range", "seed", options.seed, "a whole number", "leave it out")
    if options.audit_state and {dtype, ssm, kv} != {"float32"}:
        raise ConfigError(
            "audit_dtype",
            "audit_state",
            True,
            f"off in {dtype} with {ssm} states and {kv} pages: only float32 is bit-equal",
            "give dtype = float32, or leave audit_state out",
        )
    return EngineConfig(
        dtype=dtype,
        device=("gpu" if gpu_present else "cpu") if options.device == "auto" else options.device,
        max_model_len=length,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        mamba_ssm_cache_dtype=ssm,
        kv_cache_dtype=kv,
        kv_cache_page_size=options.kv_cache_page_size,
        num_state_slots=_num_slots(spec, options, length, (dtype, ssm), caching, speculation),
        num_kv_pages=_num_pages(spec, options, length, kv, caching.mode != "none", head),
        check_finite=options.check_finite,
        mamba_cache_mode=caching.mode,
        mamba_block_size=caching.block,
        scheduling_policy=options.scheduling_policy,
        speculation=speculation,
        audit_state=options.audit_state,
        warnings=caching.warnings + draft_warnings,
    )


def page_bytes(spec: ModelSpec, page_size: int, kv_dtype: str, head: bool) -> int:
    """Returns the bytes of one page: K and V of `page_size` tokens, with those of a draft head."""
    layers = spec.count(LayerKind.ATTENTION)
    layers += spec.count_mtp(LayerKind.ATTENTION) if head else 0
    if not layers:
        return 0
    return layers * 2 * spec.attention.kv_dim * page_size * DTYPE_BYTES[kv_dtype]


def memory_bytes() -> int:
    """Returns the machine's physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _model_length(spec: ModelSpec, options: EngineOptions) -> int:
    limit = spec.max_position_embeddings
    if options.max_model_len is None:
        return DEFAULT_MODEL_LEN if limit is None else limit
    if limit is not None and options.max_model_len > limit:
        raise ConfigError(
            "model_length",
            "max_model_len",
            options.max_model_len,
            f"at most {limit}, the model's max_position_embeddings",
            f"give {limit} or less",
        )
    return options.max_model_len


def _num_slots(
    spec: ModelSpec,
    options: EngineOptions,
    length: int,
    dtypes: tuple[str, str],
    caching: Caching,
    speculation: Speculation | None,
) -> int:
    """Slots of the pool: for each running request one and one for each draft, and checkpoints as
    memory allows."""
    if not spec.count(LayerKind.MAMBA2):
        if options.num_state_slots is not None:
            raise ConfigError(
                "no_mamba",
                "num_state_slots",
                options.num_state_slots,
                "unset for a model without Mamba layers",
                "leave it out",
            )
        return 0
    if options.num_state_slots is not None:
        return options.num_state_slots
    head = speculation is not None and speculation.method == "mtp"
    model_bytes, ssm_bytes = (DTYPE_BYTES[name] for name in dtypes)
    size = slot_bytes(spec, model_bytes, ssm_bytes, head)
    affordable = int(memory_bytes() * CACHE_SHARE) // size
    live = 1 + (0 if speculation is None else speculation.num_speculative_tokens)
    if affordable < options.max_num_seqs * live:
        most = affordable // live
        raise ConfigError(
            "memory",
            "max_num_seqs",
            options.max_num_seqs,
            f"at most {most}: each running request needs {live} slots of {size:,} bytes, and all "
            "slots may take a quarter of this machine's memory",
            f"give max_num_seqs = {most}, or num_state_slots",
        )
    if caching.mode == "none":
        return options.max_num_seqs * live
    return min(options.max_num_seqs * (live + length // caching.block), affordable)


def _num_pages(
    spec: ModelSpec, options: EngineOptions, length: int, kv_dtype: str, cached: bool, head: bool
) -> int:
    """Pages of the pool: at least enough for one request of full length."""
    size = page_bytes(spec, options.kv_cache_page_size, kv_dtype, head)
    if not size:
        if options.num_kv_pages is not None:
            raise ConfigError(
                "no_attention",
                "num_kv_pages",
                options.num_kv_pages,
                "unset for a model without attention layers",
                "leave it out",
            )
        return 0
    one = -(-length // options.kv_cache_page_size)
    if options.num_kv_pages is not None:
        if options.num_kv_pages < one:
            raise ConfigError(
                "too_few_pages",
                "num_kv_pages",
                options.num_kv_pages,
                f"at least {one}, for one request of max_model_len = {length} tokens in pages of "
                f"{options.kv_cache_page_size}",
                f"give {one}, or max_model_len = "
                f"{options.num_kv_pages * options.kv_cache_page_size}",
            )
        return options.num_kv_pages
    affordable = int(memory_bytes() * CACHE_SHARE) // size
    if affordable < one:
        raise ConfigError(
            "memory",
            "max_model_len",
            length if options.max_model_len is not None else MISSING,
            f"at most {affordable * options.kv_cache_page_size}: pages for {length} tokens need "
            f"{one * size:,} bytes, over a quarter of this machine's memory",
            f"give max_model_len = {affordable * options.kv_cache_page_size}, or num_kv_pages",
        )
    return min(one * options.max_num_seqs * (2 if cached else 1), affordable)


def _one_of(field: str, got: object, allowed: tuple[str, ...]) -> None:
    if got not in allowed:
        near = difflib.get_close_matches(str(got), allowed, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the default is {allowed[0]}"
        raise ConfigError("choice", field, got, " or ".join(allowed), hint)


def _positive(field: str, got: object, least: int = 1) -> None:
    if not isinstance(got, int) or isinstance(got, bool) or not least <= got <= MOST_IDS:
        raise ConfigError(
            "range", field, got, f"a whole number from {least}", f"give {least} or more"
        )
