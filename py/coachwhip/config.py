"""Options of the engine, and their resolution against a model and a machine.

`EngineOptions` is what a user may set; `resolve` turns it into an `EngineConfig` in which nothing
is left open, or raises a `ConfigError` before any weight is read. Neither imports max or torch.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, fields

from coachwhip_graphs.spec import LayerKind, ModelSpec

from .errors import MISSING, ConfigError

DTYPES = ("auto", "float32", "bfloat16")
SSM_DTYPES = ("auto", "float32", "float16", "bfloat16")
DEVICES = ("auto", "cpu", "gpu")
DEFAULT_MODEL_LEN = 8192
"""Length in tokens for models whose config names none."""
CACHE_SHARE = 0.25
"""Share of the machine's memory that state slots and pages may take when no size is given."""
SLOT_SHARE = 0.5
"""Share of the machine's memory that the state slots of running requests may take."""
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
    """Pages of the pool; None is enough for max_num_seqs requests of max_model_len, as far as a
    quarter of the machine's memory allows."""
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
    if options.max_model_len is not None:
        _positive("max_model_len", options.max_model_len, 2)
    if options.num_kv_pages is not None:
        _positive("num_kv_pages", options.num_kv_pages)
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
    _check_slots(options.max_num_seqs, slot_bytes(spec, dtype, ssm))
    return EngineConfig(
        dtype=dtype,
        device=("gpu" if gpu_present else "cpu") if options.device == "auto" else options.device,
        max_model_len=length,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        mamba_ssm_cache_dtype=ssm,
        kv_cache_dtype=kv,
        kv_cache_page_size=options.kv_cache_page_size,
        num_state_slots=options.max_num_seqs if spec.count(LayerKind.MAMBA2) else 0,
        num_kv_pages=_num_pages(spec, options, length, kv),
        check_finite=options.check_finite,
    )


def page_bytes(spec: ModelSpec, page_size: int, kv_dtype: str) -> int:
    """Returns the bytes of one page: K and V of `page_size` tokens, MTP head included."""
    layers = spec.count(LayerKind.ATTENTION) + spec.count_mtp(LayerKind.ATTENTION)
    if not layers:
        return 0
    return layers * 2 * spec.attention.kv_dim * page_size * DTYPE_BYTES[kv_dtype]


def slot_bytes(spec: ModelSpec, dtype: str, ssm_dtype: str) -> int:
    """Returns the bytes of one state slot: conv windows and SSM states of all Mamba layers."""
    layers = spec.count(LayerKind.MAMBA2)
    if not layers:
        return 0
    m = spec.mamba
    window = (m.d_conv - 1) * m.conv_dim * DTYPE_BYTES[dtype]
    return layers * (window + m.d_inner * m.dstate * DTYPE_BYTES[ssm_dtype])


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


def _num_pages(spec: ModelSpec, options: EngineOptions, length: int, kv_dtype: str) -> int:
    """Pages of the pool: at least enough for one request of full length."""
    if not page_bytes(spec, options.kv_cache_page_size, kv_dtype):
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
    size = page_bytes(spec, options.kv_cache_page_size, kv_dtype)
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
    return min(one * options.max_num_seqs, affordable)


def _check_slots(count: int, size: int) -> None:
    """Raises ConfigError unless a slot for each running request is affordable."""
    most = min(int(memory_bytes() * SLOT_SHARE) // size, MOST_IDS) if size else MOST_IDS
    if count > most:
        raise ConfigError(
            "memory",
            "max_num_seqs",
            count,
            f"at most {most}: a state slot takes {size:,} bytes, and slots may take half of this "
            "machine's memory",
            f"give max_num_seqs = {most}",
        )


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
