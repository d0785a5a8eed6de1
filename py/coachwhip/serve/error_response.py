"""Every error as a response in OpenAI's form."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from ..errors import EngineError, RequestError, shown
from ..openai import ApiError
from .engine_client import EngineGone

_log = logging.getLogger(__name__)

DEADLINE_EXCEEDED = "deadline_exceeded"
RETRY_S = 2
"""Seconds after which a client may try again while the engine starts."""


class Unavailable(ApiError):
    """A request that is right, but not now.

    Args:
        status: HTTP status.
        message: Why.
        code: Stable name.
        retry_s: Seconds after which another try makes sense.
        type: OpenAI's kind of error; by the status when None.
    """

    def __init__(
        self, status: int, message: str, code: str, retry_s: int, type: str | None = None
    ) -> None:
        super().__init__(status, message, code=code, type=type)
        self.retry_s = retry_s


def api_error(error: Exception) -> ApiError:
    """Returns any error as the one that a client gets; an unexpected one is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineGone):
        return Unavailable(503, str(error), "engine_unavailable", RETRY_S)
    if isinstance(error, RequestError):
        return ApiError.of(error)
    if isinstance(error, EngineError):
        return ApiError(500, f"the text was not finished: {error}", code="generation_failed")
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail), code=_code(error.status_code))
    _log.error("%s: %s", type(error).__name__, error, exc_info=error)
    return ApiError(500, "the server failed; its log says why", code="internal_error")


def error_response(error: ApiError) -> JSONResponse:
    """Returns the response of an error."""
    headers = {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(error.retry_s)
    if error.code == DEADLINE_EXCEEDED:
        headers["X-Should-Retry"] = "false"  # OpenAI's clients repeat every other 408
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error.body(), error.status, headers)


async def handle_error(request: Request, error: Exception) -> JSONResponse:
    """Handles what a route raises."""
    found, path = api_error(error), shown(request.url.path)
    if isinstance(error, HTTPException) and error.status_code == 404:
        found = ApiError(404, f"there is no {path} here", code="not_found")
    if isinstance(error, HTTPException) and error.status_code == 405:
        found = ApiError(405, f"{path} does not take {request.method}", code="method_not_allowed")
    response = error_response(found)
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response


def _code(status: int) -> str | None:
    return {404: "not_found", 405: "method_not_allowed"}.get(status)
