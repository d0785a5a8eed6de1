"""From a body to what the engine is asked."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from ..errors import RequestError
from ..sampling.grammar import Grammar
from ..sampling.params import SamplingParams
from .answer_form import answer_grammar
from .api_error import ApiError
from .bodies import ChatBody, CompletionBody
from .frontend import Frontend
from .job import EngineRequest, Job, new_id
from .reasoning import opens_reasoning

COMPLETION_TOKENS = 16
"""`max_tokens` of a completion that gives none, as OpenAI has it; a chat has no limit."""
_SAME_NAMES = (
    "top_p",
    "top_k",
    "min_p",
    "temperature",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "bad_words",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "speculative_config",
    "seed",
)


def translate(
    body: CompletionBody | ChatBody, frontend: Frontend, *, default_seed: int | None = None
) -> Job:
    """Returns the job of a body, everything about it checked.

    Args:
        body: The body.
        frontend: The model.
        default_seed: Seed of a body that gives none; None lets the engine draw one.

    Raises:
        ApiError: The body cannot be served.
    """
    model = frontend.served_name(body.model)
    try:
        prompts = _prompts(body, frontend)
        params = sampling_params(body, frontend, default_seed, prompts[0][0])
        for _, token_ids in prompts:
            frontend.check(token_ids, params, "messages" if _is_chat(body) else "prompt")
        check_rest(body, frontend)
    except RequestError as error:
        raise ApiError.of(error) from None
    requests, echoes = [], []
    for text, token_ids in prompts:
        echo = ""
        if not _is_chat(body) and body.echo:
            echo = frontend.prompt_text(token_ids) if text is None else text
        for choice in range(body.num_choices):
            requests.append(
                EngineRequest(
                    token_ids,
                    replace(params, seed=choice_seed(params.seed, choice)),
                    text,
                    body.priority or 0,
                    body.cache_salt,
                )
            )
            echoes.append(echo)
    return Job(body, frontend, model, tuple(requests), tuple(echoes), new_id(_is_chat(body)))


def sampling_params(
    body: CompletionBody | ChatBody,
    frontend: Frontend,
    default_seed: int | None = None,
    prompt: str | None = None,
) -> SamplingParams:
    """Returns the parameters of a body's first choice.

    Args:
        body: The body.
        frontend: The model.
        default_seed: Seed of a body that gives none.
        prompt: Text of a chat's prompt, whose end says whether the model reasons first.

    Raises:
        RequestError: A value is out of its range, or asks for what is not supported.
    """
    grammar = _grammar(body, frontend, prompt)
    if _is_chat(body):
        limit = body.max_completion_tokens
        if limit is None:
            limit = body.max_tokens
        name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    else:
        name, limit = "max_tokens", body.max_tokens
        if limit is None:
            # A text that must be longer than the default is not cut at it.
            limit = max(COMPLETION_TOKENS, body.min_tokens or 0)
    given = {key: value for key in _SAME_NAMES if (value := getattr(body, key)) is not None}
    values = {**frontend.sampling_defaults(), "seed": default_seed, **given}
    try:
        return SamplingParams(
            **values,
            max_tokens=limit,
            logprobs=body.num_logprobs,
            prompt_logprobs=body.num_logprobs if not _is_chat(body) and body.echo else None,
            grammar=grammar,
        )
    except RequestError as error:
        renamed = {"max_tokens": name, "logprobs": "top_logprobs" if _is_chat(body) else "logprobs"}
        raise RequestError(
            renamed.get(error.field, error.field), error.got, error.message
        ) from None


def _grammar(
    body: CompletionBody | ChatBody, frontend: Frontend, prompt: str | None
) -> Grammar | None:
    """Returns what holds the texts to a form, known to be one that the model can follow."""
    reasons = _is_chat(body) and opens_reasoning(prompt or "")
    try:
        grammar = answer_grammar(body, reasons, frontend.token_of)
        if grammar is not None:
            frontend.guidance.check(grammar)
    except RequestError as error:
        free = body.response_format is None or body.response_format.type == "text"
        raise RequestError(
            "tools" if free else "response_format", error.got, error.message
        ) from None
    return grammar


def choice_seed(seed: int | None, choice: int) -> int | None:
    """Returns the seed of one choice: the seed itself for the first, for others one made of it."""
    if seed is None or choice == 0:
        return seed
    return int.from_bytes(sha256(f"choice {choice} of {seed}".encode()).digest()[:8], "little")


def _prompts(
    body: CompletionBody | ChatBody, frontend: Frontend
) -> list[tuple[str | None, list[int]]]:
    """Returns text and token ids of each prompt; the text is None where ids were given."""
    if _is_chat(body):
        return [frontend.chat_tokens(body)]
    return [
        (prompt, frontend.prompt_tokens(prompt)) if isinstance(prompt, str) else (None, prompt)
        for prompt in body.prompts
    ]


def check_rest(body: CompletionBody | ChatBody, frontend: Frontend) -> None:
    """Checks the arguments of `Engine.add_request` that are no sampling parameters.

    Raises:
        RequestError: One of them cannot be served.
    """
    if body.priority and frontend.config.scheduling_policy != "priority":
        raise RequestError(
            "priority", body.priority, "the engine was started without scheduling_policy = priority"
        )
    if body.cache_salt == "":
        raise RequestError("cache_salt", "", "give a non-empty text, or leave it out")


def _is_chat(body: CompletionBody | ChatBody) -> bool:
    return isinstance(body, ChatBody)
