"""The page at `/`, and the status that its panels show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from .event_stream import EventStream, event
from .service import Service
from .status import status

router = APIRouter(include_in_schema=False)

PERIOD_S = 0.5
"""Seconds from one status of a stream to the next."""
_FOLDER = Path(__file__).with_name("page")
_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


@router.get("/")
async def page() -> Response:
    """Returns the page."""
    return FileResponse(_FOLDER / "index.html", headers=_HEADERS)


@router.get("/page.css")
async def style() -> Response:
    """Returns its style."""
    return FileResponse(_FOLDER / "page.css", headers=_HEADERS)


@router.get("/page.js")
async def script() -> Response:
    """Returns its script."""
    return FileResponse(_FOLDER / "page.js", media_type="text/javascript", headers=_HEADERS)


@router.get("/status")
async def one_status(request: Request) -> dict[str, object]:
    """Returns the engine's state."""
    return await status(request.app.state.service)


@router.get("/status/stream")
async def status_stream(request: Request) -> Response:
    """Returns the engine's state again and again, as server-sent events."""
    return EventStream(_statuses(request.app.state.service), lambda: None)


async def _statuses(service: Service) -> AsyncIterator[bytes]:
    while not service.ending.is_set():
        yield event(json.dumps(await status(service)))
        await asyncio.sleep(PERIOD_S)
