"""Resolves the options of prefix caching and of cutting prompts against a model."""

from __future__ import annotations

from dataclasses import dataclass

from coachwhip_graphs.spec import LayerKind, ModelSpec

from ..errors import ConfigError
from .caching_rules import caching_rule, switch
from .decisions import DecisionLog
from .options import MOST_IDS, SMALLEST_BLOCK, EngineOptions

DEFAULT_BLOCK = 64
"""Tokens between checkpoints: a prompt of a few hundred tokens has several."""
DEFAULT_BUDGET = 512
"""Rows of a step."""


@dataclass(frozen=True)
class Caching:
    """The mode (`none`, `align`, `all`) and the grid in tokens."""

    mode: str
    block: int


@dataclass(frozen=True)
class Chunking:
    """Whether prompts may be cut, and the most rows of a step."""

    chunked: bool
    budget: int


def resolve_caching(
    spec: ModelSpec, options: EngineOptions, max_model_len: int, budget: int, log: DecisionLog
) -> Caching:
    """Resolves `enable_prefix_caching`, `mamba_cache_mode` and `mamba_block_size`.

    Args:
        spec: The model.
        options: What the user set.
        max_model_len: Most tokens of a request.
        budget: Most rows of a step.
        log: Gets the decisions.

    Raises:
        ConfigError: Options contradict each other.
    """
    has_mamba = bool(spec.count(LayerKind.MAMBA2))
    rule = caching_rule(
        "mamba" if has_mamba else "attention",
        switch(options.enable_prefix_caching),
        options.mamba_cache_mode,
        switch(options.enable_chunked_prefill),
    )
    asked = options.mamba_cache_mode
    if rule.result is None:
        raise ConfigError(rule.code, "mamba_cache_mode", asked, rule.reason, rule.fix)
    if rule.warns:
        line = f"mamba_cache_mode = {asked} has no effect: {rule.reason}"
        log.warn(rule.code, "mamba_cache_mode", rule.result, line)
    else:
        log.add(rule.code, "mamba_cache_mode", rule.result, rule.reason)
    unused = "" if has_mamba else "the model has no Mamba layers"
    if rule.result == "none":
        unused = "prefix caching is off"
    return Caching(
        rule.result, _block(options.mamba_block_size, max_model_len, budget, unused, log)
    )


def resolve_chunking(options: EngineOptions, max_model_len: int, log: DecisionLog) -> Chunking:
    """Resolves `enable_chunked_prefill` and `max_num_batched_tokens`.

    Args:
        options: What the user set.
        max_model_len: Most tokens of a request.
        log: Gets the decisions.

    Raises:
        ConfigError: Prompts are not to be cut, and a step is too small for the longest.
    """
    wanted, budget = options.enable_chunked_prefill, options.max_num_batched_tokens
    chunked = wanted is not False
    if not chunked:
        reason = "as asked for: each prompt runs whole, in one step"
    elif options.mamba_cache_mode == "align" and wanted is None:
        reason = "align keeps the states at the ends of prompt chunks"
    else:
        reason = "as asked for" if wanted else "long prompts share steps with other requests"
    log.add("chunked_prefill", "enable_chunked_prefill", chunked, reason)
    if budget is None:
        budget, reason = DEFAULT_BUDGET, f"the default, {DEFAULT_BUDGET}"
        if not chunked:
            budget = max(budget, min(MOST_IDS, max_model_len + options.max_num_seqs))
            reason = "a whole prompt fits beside a row for each request"
        log.add("token_budget", "max_num_batched_tokens", budget, reason)
        return Chunking(chunked, budget)
    if not chunked and budget < max_model_len:
        raise ConfigError(
            "whole_prompts",
            "max_num_batched_tokens",
            budget,
            f"at least max_model_len = {max_model_len} while enable_chunked_prefill is false, "
            "since a prompt must fit into one step",
            f"give max_num_batched_tokens = {max_model_len}, or max_model_len = {budget}, or drop "
            "--no-enable-chunked-prefill",
        )
    log.add("token_budget", "max_num_batched_tokens", budget, "as asked for")
    return Chunking(chunked, budget)


def _block(
    block: int | None, max_model_len: int, budget: int, unused: str, log: DecisionLog
) -> int:
    """Returns the grid, and says what is to be known of it.

    Args:
        block: As the user set it.
        max_model_len: Most tokens of a request.
        budget: Most rows of a step.
        unused: Why there are no checkpoints; empty if there are.
        log: Gets the decision.
    """
    name = "mamba_block_size"
    # A prompt has at most max_model_len - 1 tokens, and the last one is always computed.
    longest_hit = max_model_len - 2
    if block is None:
        block = DEFAULT_BLOCK
        while block > SMALLEST_BLOCK and 2 * block > longest_hit:
            block //= 2
        reason = "the default: a prompt of a few hundred tokens has several grid points"
        if block < DEFAULT_BLOCK:
            reason = f"a finer grid than {DEFAULT_BLOCK}, since max_model_len is {max_model_len}"
        log.add("block_default", name, block, unused or reason)
    elif unused:
        log.warn("block_unused", name, block, f"{name} = {block} has no effect: {unused}")
    elif block > longest_hit:
        fix = "leave it out" if longest_hit < SMALLEST_BLOCK else f"give at most {longest_hit}"
        log.warn(
            "block_never_hits",
            name,
            block,
            f"{name} is {block}, but with max_model_len = {max_model_len} no hit can be longer "
            f"than {max(0, longest_hit)} tokens: no prompt will ever hit; {fix}",
        )
    elif block > budget:
        steps = -(-block // budget)
        log.add("block_above_budget", name, block, f"as asked for; {steps} steps reach one")
    else:
        log.add("block_given", name, block, "as asked for")
    return block
