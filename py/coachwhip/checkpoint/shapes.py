"""Makes the mixers' shapes from a config's sizes and refuses those that no kernel runs."""

from __future__ import annotations

from coachwhip_graphs.limits import (
    D_CONV_LIMITS,
    DSTATE_LIMIT,
    HEAD_VALUES_LIMIT,
    HEADDIM_LIMIT,
    VOCAB_LIMIT,
)
from coachwhip_graphs.spec import AttentionSpec, Mamba2Spec

from .hf_config import HFConfig


def mamba2_spec(
    config: HFConfig,
    *,
    nheads: tuple[str, int],
    headdim: tuple[str, int],
    dstate: tuple[str, int],
    ngroups: tuple[str, int],
    d_conv: tuple[str, int],
    dt_limit: tuple[float, float],
) -> Mamba2Spec:
    """Checks a Mamba2 mixer's sizes; each comes as (key for errors, value).

    What passes also has channels of the convolution (nheads * headdim + 2 * ngroups * dstate) and
    groups of the gated norm (nheads * headdim / ngroups) that are multiples of 16.

    Raises:
        ConfigError: nheads % ngroups != 0; headdim or dstate not a multiple of 16, or above 256;
            headdim * dstate above 32,768; d_conv outside 2..4.
    """
    if nheads[1] % ngroups[1]:
        raise config.error(
            ngroups[0],
            ngroups[1],
            f"a divisor of {nheads[0]} = {nheads[1]}",
            "every group serves the same number of heads",
        )
    _multiple_of_16(config, *headdim)
    _multiple_of_16(config, *dstate)
    for size, limit in ((headdim, HEADDIM_LIMIT), (dstate, DSTATE_LIMIT)):
        if size[1] > limit:
            raise config.error(*size, f"at most {limit}", _NO_KERNEL, "unsupported")
    if headdim[1] * dstate[1] > HEAD_VALUES_LIMIT:
        raise config.error(
            *headdim,
            f"at most {HEAD_VALUES_LIMIT // dstate[1]} with {dstate[0]} = {dstate[1]}",
            f"the kernels run heads of at most {HEAD_VALUES_LIMIT} state values",
            "unsupported",
        )
    fewest, most = D_CONV_LIMITS
    if not fewest <= d_conv[1] <= most:
        raise config.error(*d_conv, f"from {fewest} to {most}", _NO_KERNEL, "unsupported")
    return Mamba2Spec(nheads[1], headdim[1], dstate[1], ngroups[1], d_conv[1], dt_limit)


def attention_spec(
    config: HFConfig,
    *,
    num_heads: tuple[str, int],
    num_kv_heads: tuple[str, int],
    head_dim: tuple[str, int],
) -> AttentionSpec:
    """Checks an attention mixer's sizes; each comes as (key for errors, value).

    Raises:
        ConfigError: num_heads % num_kv_heads != 0; head_dim not a multiple of 16.
    """
    if num_heads[1] % num_kv_heads[1]:
        raise config.error(
            num_kv_heads[0],
            num_kv_heads[1],
            f"a divisor of {num_heads[0]} = {num_heads[1]}",
            "every key-value head serves the same number of query heads",
        )
    _multiple_of_16(config, *head_dim)
    return AttentionSpec(num_heads[1], num_kv_heads[1], head_dim[1], head_dim[1] ** -0.5)


def check_vocabulary(config: HFConfig, vocab_size: int) -> None:
    """Checks the number of rows of the embedding.

    Raises:
        ConfigError: More than the sampling kernel takes.
    """
    if vocab_size > VOCAB_LIMIT:
        raise config.error(
            "vocab_size", vocab_size, f"at most {VOCAB_LIMIT}", _NO_KERNEL, "unsupported"
        )


_NO_KERNEL = "the kernels run no other size"


def _multiple_of_16(config: HFConfig, key: str, value: int) -> None:
    if value % 16:
        raise config.error(key, value, "a multiple of 16", _NO_KERNEL, "unsupported")
