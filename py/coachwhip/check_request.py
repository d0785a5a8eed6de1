"""Whether a prompt can be served with given parameters; said before anything is queued."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coachwhip_graphs.spec import ModelSpec

from .config import EngineConfig
from .errors import RequestError
from .sampling.guidance import Guidance
from .sampling.params import SamplingParams


def check_request(
    prompt_token_ids: Sequence[int],
    params: SamplingParams | None,
    spec: ModelSpec,
    config: EngineConfig,
    guidance: Guidance,
    *,
    has_tokenizer: bool,
) -> None:
    """Raises RequestError unless the prompt can be served with these parameters."""
    if params is not None:
        _check_params(params, spec.vocab_size, config.most_drafts, has_tokenizer)
        if params.grammar is not None:
            guidance.check(params.grammar)
    _check_prompt(prompt_token_ids, spec.vocab_size)
    limit = config.max_model_len
    if len(prompt_token_ids) >= limit:
        raise RequestError(
            "prompt",
            f"{len(prompt_token_ids)} tokens",
            f"max_model_len is {limit}, so a prompt may have {limit - 1}; shorten it"
            + (
                " or raise max_model_len"
                if limit < (spec.max_position_embeddings or limit + 1)
                else ""
            ),
        )


def check_text(field: str, text: str) -> None:
    """Raises RequestError unless a text has a UTF-8 form, as what was read with errors has not."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        at = error.start
        raise RequestError(
            field, text, f"character {at} is half a surrogate pair, U+{ord(text[at]):04X}; drop it"
        ) from None


def _check_prompt(prompt_token_ids: Sequence[int], vocab: int) -> None:
    if not prompt_token_ids:
        raise RequestError("prompt", prompt_token_ids, "it is empty; give at least one token")
    for i, token in enumerate(prompt_token_ids):
        if not isinstance(token, (int, np.integer)) or isinstance(token, bool):
            raise RequestError(f"prompt_token_ids[{i}]", token, "token ids are whole numbers")
        if not 0 <= token < vocab:
            raise RequestError(
                f"prompt_token_ids[{i}]", int(token), f"the vocabulary has ids 0 to {vocab - 1}"
            )


def _check_params(
    params: SamplingParams, vocab: int, most_drafts: int, has_tokenizer: bool
) -> None:
    if not isinstance(params, SamplingParams):
        raise RequestError("sampling_params", repr(params), "give a SamplingParams")
    for name in ("stop", "bad_words"):
        if getattr(params, name) and not has_tokenizer:
            raise RequestError(name, list(getattr(params, name)), "the model has no tokenizer.json")
    for word in params.bad_words:
        check_text("bad_words", word)
    for token, bias in (params.logit_bias or {}).items():
        if token >= vocab:
            raise RequestError(
                "logit_bias", {token: bias}, f"the vocabulary has ids 0 to {vocab - 1}"
            )
    drafts = params.most_drafts
    if drafts is not None and drafts > most_drafts:
        raise RequestError(
            "speculative_config.num_speculative_tokens",
            drafts,
            f"give at most {most_drafts}, the engine's own number"
            if most_drafts
            else "the engine was started without speculative_config; leave it out",
        )
