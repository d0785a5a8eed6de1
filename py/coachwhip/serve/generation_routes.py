"""The routes of `/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..openai import CHAT_URL, COMPLETIONS_URL, ChatBody, CompletionBody
from .generation import generate
from .openapi import described

router = APIRouter(tags=["generation"])


@router.post(
    COMPLETIONS_URL,
    response_class=Response,
    **described(CompletionBody, "Texts that continue prompts", streams=True),
)
async def completions(request: Request) -> Response:
    """Continues a prompt, or several."""
    return await generate(request, COMPLETIONS_URL)


@router.post(
    CHAT_URL,
    response_class=Response,
    **described(ChatBody, "The next message of a conversation", streams=True),
)
async def chat_completions(request: Request) -> Response:
    """Answers a conversation."""
    return await generate(request, CHAT_URL)
