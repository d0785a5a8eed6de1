"""Lets only those in who have a key."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from ..openai import ApiError
from .error_response import error_response

OPEN_PATHS = frozenset(("/", "/page.css", "/page.js", "/health", "/version", "/metrics"))
"""What needs no key: the page, which asks for one, and what monitors read. No prompt is in it."""


class ApiKeys:
    """ASGI middleware that refuses requests without a valid `Authorization: Bearer` header.

    Args:
        app: What comes after it.
        keys: The valid keys; none lets everyone in.
    """

    def __init__(self, app, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http" or not self._digests or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) == 1 and self._is_valid(given[0]):
            await self._app(scope, receive, send)
            return
        message = (
            "the API key is not valid; send one that the server was started with"
            if given
            else "there is no API key; send it as Authorization: Bearer KEY"
        )
        response = error_response(ApiError(401, message, code="invalid_api_key"))
        await response(scope, receive, send)

    def _is_valid(self, header: bytes) -> bool:
        scheme, _, key = header.partition(b" ")
        digest = sha256(key.strip()).digest()
        # All are compared, so that the time tells nothing about any of them.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == b"bearer" and any(matches)
