"""The options of the engine: the one tree behind command line, environment, file and Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from os import PathLike, fspath
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs, PydanticCustomError

from .invalid import config_error
from .origins import DEFAULT, GIVEN
from .quantity import memory_amount

Dtype = Literal["auto", "float32", "bfloat16"]
SsmDtype = Literal["auto", "float32", "float16", "bfloat16"]
DeviceKind = Literal["auto", "cpu", "gpu"]
Policy = Literal["fcfs", "priority"]
CacheMode = Literal["auto", "none", "align", "all"]
StepLoop = Literal["auto", "simple", "overlapped"]

DTYPES: tuple[str, ...] = get_args(Dtype)
SSM_DTYPES: tuple[str, ...] = get_args(SsmDtype)
DEVICES: tuple[str, ...] = get_args(DeviceKind)
POLICIES: tuple[str, ...] = get_args(Policy)
CACHE_MODES: tuple[str, ...] = get_args(CacheMode)
STEP_LOOPS: tuple[str, ...] = get_args(StepLoop)

MOST_IDS = 2**31 - 1
"""Slots, pages and rows are counted in int32."""
SMALLEST_BLOCK = 4

Whole = Annotated[int, Field(ge=1, le=MOST_IDS)]


def _path(value: object) -> object:
    return fspath(value) if isinstance(value, PathLike) else value


def _memory(value: object) -> object:
    amount = memory_amount(value)
    if value is not None and amount is None:
        raise PydanticCustomError("memory_amount", "no amount of memory")
    return amount


def _json_object(value: object) -> object:
    if value is not None and not isinstance(value, Mapping):
        raise PydanticCustomError("json_object", "no object")
    return value


Path = Annotated[str, BeforeValidator(_path)]
Memory = Annotated[int | float | None, BeforeValidator(_memory)]
JsonObject = Annotated[Any, BeforeValidator(_json_object)]


@dataclass(
    frozen=True,
    config=ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True),
)
class EngineOptions:
    """What a user may set. Each value is in its range; whether all of them fit together, a model
    and a machine is for `resolve` to say.

    Raises:
        ConfigError: A name is unknown, or a value has the wrong type or is out of range.
    """

    model: Path | None = None
    """Folder of a checkpoint, or a hub id (org/name); unset is the small model that ships with the
    package."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; unset is its main branch. For gated and private models set
    HF_TOKEN or run `hf auth login`; no option takes a token."""
    dtype: Dtype = "auto"
    """Type of weights and activations; auto is the checkpoint's (float32 for float16 files)."""
    device: DeviceKind = "auto"
    """cpu or gpu; auto is the GPU if there is one."""
    max_model_len: Annotated[int, Field(ge=2, le=MOST_IDS)] | None = None
    """Most tokens of a request, prompt and text; unset is the model's own limit."""
    max_num_seqs: Whole = 8
    """Most requests that run at a time."""
    max_num_batched_tokens: Whole | None = None
    """Most rows of a step; longer prompts run in chunks. Unset is 512, or more where prompts are
    not cut, so that the longest has room."""
    enable_chunked_prefill: bool | None = None
    """Cut prompts that a step has no room for; off runs each prompt whole, in one step. Auto is
    on."""
    mamba_ssm_cache_dtype: SsmDtype = "auto"
    """Type of stored SSM states; auto is float32, the only one without measurable error."""
    kv_cache_dtype: Dtype = "auto"
    """Type of keys and values; auto is the model's."""
    kv_cache_page_size: Annotated[int, Field(ge=8, le=MOST_IDS, multiple_of=8)] = 16
    """Tokens per page, a multiple of 8."""
    num_kv_pages: Whole | None = None
    """Pages of the pool; unset is enough for max_num_seqs requests of max_model_len, twice that
    with prefix caching, as far as memory allows."""
    enable_prefix_caching: bool | None = None
    """Restore the states and pages of prefixes that were computed before. Auto is on."""
    mamba_cache_mode: CacheMode = "auto"
    """Which states are kept as checkpoints: none, align (where prompt chunks end) or all (the whole
    grid); auto is all."""
    mamba_block_size: Annotated[int, Field(ge=SMALLEST_BLOCK, le=MOST_IDS)] | None = None
    """The grid of checkpoints in tokens, from 4; unset is 64, or less for a small max_model_len."""
    num_state_slots: Whole | None = None
    """Slots of the pool; unset is one for each of max_num_seqs requests and each of their drafts,
    and with prefix caching checkpoints as far as memory allows."""
    cache_memory: Memory = None
    """Memory for slots and pages together: bytes such as 8GiB, or a share of the machine's memory
    (of the GPU's on a GPU) from 0 to 1. Unset is at most a quarter of what the weights leave for
    each of the two on a CPU, and nine tenths less the weights on a GPU."""
    scheduling_policy: Policy = "fcfs"
    """fcfs, or priority: lower priorities first, preempting others where they must."""
    step_loop: StepLoop = "auto"
    """How steps follow each other: simple, or overlapped, which completes the outputs of a step
    while the next one runs. Auto is simple."""
    speculative_config: JsonObject = None
    """Drafts that are verified together, {"method": "mtp", "num_speculative_tokens": 3}, with
    vLLM's keys. Unset generates token by token."""
    spec_method: str | None = None
    """Short for the method of speculative_config."""
    spec_tokens: int | None = None
    """Short for its num_speculative_tokens."""
    spec_model: Path | None = None
    """Short for its model: the draft model's folder or hub id."""
    drafter: Any = None
    """With method custom: an object with propose(request_id, token_ids, k), which returns up to k
    drafts after the tokens. In Python only."""
    seed: int | None = None
    """Decides the seeds of sampled requests that give none; unset draws them."""
    audit_state: bool = False
    """Recompute and compare every checkpoint when it is published and when it is restored; slow,
    for debugging, in float32 only."""
    check_finite: bool = True
    """Look for NaN and infinity among the weights while loading, and warn."""
    origins: Any = field(default_factory=dict, repr=False, compare=False)
    """Name -> `Origin` of values that were not given directly; no option itself."""

    @model_validator(mode="wrap")
    @classmethod
    def _say_it_in_one_line(cls, values, handler):
        try:
            return handler(values)
        except ValidationError as error:
            given = values.kwargs or {} if isinstance(values, ArgsKwargs) else {}
            raise config_error(error, given.get("origins", {})) from None

    def origin(self, name: str) -> str:
        """Returns where an option's value comes from: `default`, `given`, or the variable or file
        that it was read from."""
        value = getattr(self, name)
        found = self.origins.get(name)
        if found is not None and found.value == value:
            return found.place
        return DEFAULT if value == _DEFAULTS[name] else GIVEN

    def is_given(self, name: str) -> bool:
        """Says whether the user set an option, in whichever way."""
        return self.origin(name) != DEFAULT


_DEFAULTS = {f.name: f.default for f in fields(EngineOptions)}
OPTION_NAMES = tuple(name for name in _DEFAULTS if name != "origins")
