"""`/tokenize` and `/detokenize`, as vLLM and routers have them."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import model_validator
from starlette.requests import Request

from ..errors import MISSING, RequestError, shown
from ..openai import ApiError, ChatBody, Frontend, parse_json
from ..openai.fields import Body, wrong_field
from ..openai.parse import parse_as
from .openapi import described
from .service import Service

router = APIRouter(tags=["tokens"])


class TokenizeBody(Body):
    """Body of `/tokenize`: a prompt, or a conversation as in `/v1/chat/completions`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            got = MISSING if self.prompt is None else self.prompt
            raise wrong_field("prompt", got, "give either prompt or messages")
        return self


class DetokenizeBody(Body):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: list[int]


@router.post("/tokenize", **described(TokenizeBody, "The tokens of a prompt or conversation"))
async def tokenize(request: Request) -> dict[str, object]:
    """Returns a text's token ids, how many there are, and how many a request may have."""
    service: Service = request.app.state.service
    async with service.bodies.read(request) as raw:
        return await asyncio.to_thread(_tokenize, raw, service.frontend)


@router.post("/detokenize", **described(DetokenizeBody, "The text of tokens"))
async def detokenize(request: Request) -> dict[str, object]:
    """Returns the text of token ids."""
    service: Service = request.app.state.service
    async with service.bodies.read(request) as raw:
        return await asyncio.to_thread(_detokenize, raw, service.frontend)


def _tokenize(raw: bytes, frontend: Frontend) -> dict[str, object]:
    value = parse_json(raw)
    body = parse_as(value, TokenizeBody)
    frontend.served_name(body.model)
    if body.messages is not None:
        _, ids = frontend.chat_tokens(parse_as(value, ChatBody))
    else:
        ids = frontend.prompt_tokens(body.prompt, body.add_special_tokens is not False)
    found = {"tokens": ids, "count": len(ids), "max_model_len": frontend.config.max_model_len}
    if body.return_token_strs:
        found["token_strs"] = [frontend.token_text.shown(token) for token in ids]
    return found


def _detokenize(raw: bytes, frontend: Frontend) -> dict[str, object]:
    body = parse_as(parse_json(raw), DetokenizeBody)
    frontend.served_name(body.model)
    if frontend.tokenizer is None:
        raise RequestError("tokens", f"{len(body.tokens)} ids", "the model has no tokenizer.json")
    size = frontend.model.spec.vocab_size
    for i, token in enumerate(body.tokens):
        if not 0 <= token < size:
            raise ApiError(
                400,
                f"tokens[{i}] is {shown(token)}: the vocabulary has ids 0 to {size - 1}",
                param=f"tokens[{i}]",
                code="invalid_value",
            )
    return {"prompt": frontend.prompt_text(body.tokens)}
