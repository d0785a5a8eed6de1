"""The whole HTTP application."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect

from ..errors import CoachwhipError
from ..openai import ChatBody, CompletionBody
from ..version import __version__
from . import generation_routes, model_routes, page_routes, token_routes
from .api_keys import ApiKeys
from .error_response import api_error, error_response, handle_error
from .openapi import definitions
from .request_record import RequestLog
from .service import Service


class Failures:
    """ASGI middleware: what no handler foresaw becomes a logged error 500 in OpenAI's form."""

    def __init__(self, app) -> None:
        self._app = app

    async def __call__(self, scope, receive, send) -> None:
        begun = False

        async def noted_send(message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted_send)
        except ClientDisconnect:
            pass
        except Exception as error:
            response = error_response(api_error(error))
            if not begun:
                await response(scope, receive, send)


def make_app(service: Service) -> FastAPI:
    """Returns the application that serves a model.

    Args:
        service: The model, its engine, and the limits.
    """
    app = FastAPI(
        title="coachwhip",
        version=__version__,
        docs_url=None,  # these pages load their scripts from other servers
        redoc_url=None,
        middleware=[
            Middleware(RequestLog),
            Middleware(ApiKeys, keys=service.options.api_keys),
            Middleware(Failures),
        ],
        exception_handlers={CoachwhipError: handle_error, HTTPException: handle_error},
    )
    app.state.service = service
    for routes in (generation_routes, model_routes, token_routes, page_routes):
        app.include_router(routes.router)
    app.openapi = lambda: _openapi(app)
    return app


def _openapi(app: FastAPI) -> dict[str, object]:
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = schema.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(definitions(CompletionBody, ChatBody))
        app.openapi_schema = schema
    return app.openapi_schema
