"""The engine's options as command-line flags, shared by all commands that load a model."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from ..caching_config import CACHE_MODES, DEFAULT_BLOCK
from ..config import DEVICES, DTYPES, POLICIES, SSM_DTYPES, EngineOptions
from ..speculation_config import METHODS

_DEFAULTS = EngineOptions()


class _JsonObject(click.ParamType):
    """A JSON object on the command line."""

    name = "json"

    def convert(self, value, param, ctx):
        if isinstance(value, dict):
            return value
        try:
            found = json.loads(value)
        except ValueError as error:
            self.fail(f"{value!r} is no JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"{value!r} is no JSON object", param, ctx)
        return found


JSON_OBJECT = _JsonObject()


def engine_flags(command: Callable) -> Callable:
    """Adds a flag for each field of `EngineOptions` but `model`, under the same names."""
    flags = [
        click.option(
            "--revision",
            help="Branch, tag or commit of a hub id. For gated and private models set HF_TOKEN or "
            "run `hf auth login`; no flag takes a token.",
        ),
        click.option(
            "--dtype", type=click.Choice(DTYPES), default="auto", help="Type of weights and rows."
        ),
        click.option("--device", type=click.Choice(DEVICES), default="auto", help="cpu or gpu."),
        click.option(
            "--max-model-len",
            "--max-length",
            "max_model_len",
            type=int,
            help="Most tokens of a request, prompt and text.",
        ),
        click.option(
            "--max-num-seqs",
            "--max-batch-size",
            "max_num_seqs",
            type=int,
            default=_DEFAULTS.max_num_seqs,
            show_default=True,
            help="Most requests that run at a time.",
        ),
        click.option(
            "--max-num-batched-tokens",
            type=int,
            default=_DEFAULTS.max_num_batched_tokens,
            show_default=True,
            help="Most rows of a step; longer prompts run in chunks.",
        ),
        click.option(
            "--mamba-ssm-cache-dtype",
            type=click.Choice(SSM_DTYPES),
            default="auto",
            help="Type of stored SSM states; auto is float32.",
        ),
        click.option(
            "--kv-cache-dtype",
            type=click.Choice(DTYPES),
            default="auto",
            help="Type of keys and values; auto is the model's.",
        ),
        click.option(
            "--kv-cache-page-size",
            type=int,
            default=_DEFAULTS.kv_cache_page_size,
            show_default=True,
            help="Tokens per page, a multiple of 8.",
        ),
        click.option("--num-kv-pages", type=int, help="Pages of the pool; default by memory."),
        click.option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            default=None,
            help="Restore states and pages of prefixes computed before; default on.",
        ),
        click.option(
            "--mamba-cache-mode",
            type=click.Choice(CACHE_MODES),
            default="auto",
            help="Which states are kept: none, align (ends of chunks), all (the grid); auto is "
            "all.",
        ),
        click.option(
            "--mamba-block-size",
            type=int,
            help=f"Grid of kept states in tokens, from 4; default {DEFAULT_BLOCK}.",
        ),
        click.option("--num-state-slots", type=int, help="Slots of the pool; default by memory."),
        click.option(
            "--scheduling-policy",
            type=click.Choice(POLICIES),
            default=_DEFAULTS.scheduling_policy,
            show_default=True,
            help="Order of requests.",
        ),
        click.option(
            "--speculative-config",
            type=JSON_OBJECT,
            help='Drafts that are verified together: {"method": "mtp", "num_speculative_tokens": 3}'
            ", vLLM's keys.",
        ),
        click.option(
            "--spec-method",
            type=click.Choice([m for m in METHODS if m != "custom"]),
            help="Short for its method.",
        ),
        click.option("--spec-tokens", type=int, help="Short for its num_speculative_tokens."),
        click.option("--spec-model", help="Short for its model: the draft model's folder or id."),
        click.option("--seed", type=int, help="Decides sampled texts; default random."),
        click.option(
            "--audit-state",
            is_flag=True,
            help="Recompute and compare every kept state; slow, for debugging.",
        ),
        click.option(
            "--check-finite/--no-check-finite",
            default=True,
            show_default=True,
            help="Look for NaN and infinity among the weights.",
        ),
    ]
    for flag in reversed(flags):
        command = flag(command)
    return command
