"""Resolves the options of prefix caching against a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coachwhip_graphs.spec import LayerKind, ModelSpec

from .errors import ConfigError

if TYPE_CHECKING:
    from .config import EngineOptions

CACHE_MODES = ("auto", "none", "align", "all")
DEFAULT_BLOCK = 64
"""Tokens between checkpoints: a prompt of a few hundred tokens has several."""
SMALLEST_BLOCK = 4


@dataclass(frozen=True)
class Caching:
    """The mode (`none`, `align`, `all`), the grid in tokens, and warnings, one line each."""

    mode: str
    block: int
    warnings: tuple[str, ...]


def resolve_caching(spec: ModelSpec, options: EngineOptions, max_model_len: int) -> Caching:
    """Resolves `enable_prefix_caching`, `mamba_cache_mode` and `mamba_block_size`.

    Args:
        spec: The model.
        options: What the user set; each value is in its range.
        max_model_len: Most tokens of a request.

    Raises:
        ConfigError: Two options contradict each other, or the grid is too fine.
    """
    warnings: list[str] = []
    has_mamba = bool(spec.count(LayerKind.MAMBA2))
    mode = _mode(options, has_mamba, warnings)
    block = options.mamba_block_size
    if block is not None and block < SMALLEST_BLOCK:
        raise ConfigError(
            "block_size",
            "mamba_block_size",
            block,
            f"at least {SMALLEST_BLOCK}",
            f"give {SMALLEST_BLOCK} for the finest grid; {DEFAULT_BLOCK} is the default",
        )
    # A prompt has at most max_model_len - 1 tokens, and the last one is always computed.
    longest_hit = max_model_len - 2
    if block is None:
        block = DEFAULT_BLOCK
        while block > SMALLEST_BLOCK and 2 * block > longest_hit:
            block //= 2
    elif mode == "none" or not has_mamba:
        warnings.append(
            f"mamba_block_size = {block} has no effect: "
            + ("prefix caching is off" if mode == "none" else "the model has no Mamba layers")
        )
    elif block > longest_hit:
        warnings.append(
            f"mamba_block_size is {block}, but with max_model_len = {max_model_len} no hit can be "
            f"longer than {longest_hit} tokens: no prompt will ever hit; give at most {longest_hit}"
        )
    slots, seqs = options.num_state_slots, options.max_num_seqs
    if has_mamba and slots is not None and slots < seqs:
        warnings.append(
            f"num_state_slots is {slots}, so at most {slots} requests run at a time, not "
            f"max_num_seqs = {seqs}; give num_state_slots = {seqs}, or more to keep checkpoints"
        )
    return Caching(mode, block, tuple(warnings))


def slot_bytes(spec: ModelSpec, model_bytes: int, ssm_bytes: int, head: bool) -> int:
    """Returns the bytes of one slot: conv window and SSM state of every Mamba layer, and the carry.

    Args:
        spec: The model.
        model_bytes: Bytes of a value in the model dtype.
        ssm_bytes: Bytes of a stored SSM value.
        head: Whether a draft head runs, which needs the carry row.
    """
    layers = spec.count(LayerKind.MAMBA2)
    if not layers:
        return 0
    m = spec.mamba
    conv = (m.d_conv - 1) * m.conv_dim * model_bytes
    states = layers * (conv + m.nheads * m.headdim * m.dstate * ssm_bytes)
    return states + (spec.hidden_size * model_bytes if head else 0)


def _mode(options: EngineOptions, has_mamba: bool, warnings: list[str]) -> str:
    wanted, mode = options.enable_prefix_caching, options.mamba_cache_mode
    if wanted is False:
        if mode in ("align", "all"):
            raise ConfigError(
                "caching_off",
                "mamba_cache_mode",
                mode,
                "none or auto while enable_prefix_caching is false",
                "drop one of the two",
            )
        return "none"
    if not has_mamba and mode == "none" and not wanted:
        return "none"
    if not has_mamba:
        if mode != "auto":
            warnings.append(
                f"mamba_cache_mode = {mode} has no effect: the model has no Mamba layers"
            )
        return "all"
    if mode == "none" and wanted:
        raise ConfigError(
            "caching_contradiction",
            "mamba_cache_mode",
            mode,
            "auto, align or all while enable_prefix_caching is true, since pages cannot be reused "
            "without the states that belong to them",
            "drop one of the two",
        )
    return "all" if mode == "auto" else mode
