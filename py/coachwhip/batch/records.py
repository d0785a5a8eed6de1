"""Lines of an output."""

from __future__ import annotations

import uuid

from pydantic_core import from_json, to_json

from ..openai import ApiError

_GOOD_END = b'"error":null}\n'


def good_record(custom_id: str, body: dict[str, object]) -> bytes:
    """Returns the line of a request that was answered."""
    return _line(custom_id, 200, body, None)


def failed_record(custom_id: str, error: ApiError) -> bytes:
    """Returns the line of a request that was not: the response that a server would give, and what
    is wrong once more under `error`."""
    brief = {"code": error.code or error.type, "message": error.message}
    return _line(custom_id, error.status, error.body(), brief)


def has_failed(record: bytes) -> bool:
    """Says whether a line is that of a failed request."""
    return not record.endswith(_GOOD_END)


def id_of(record: bytes) -> str | None:
    """Returns the id of an output's line; None when it is no such line."""
    try:
        found = from_json(record)
        custom_id = found["custom_id"] if {"response", "error"} <= found.keys() else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return custom_id if isinstance(custom_id, str) else None


def _line(custom_id: str, status: int, body: dict, error: dict | None) -> bytes:
    return (
        to_json(
            {
                "id": f"batch_req_{uuid.uuid4().hex}",
                "custom_id": custom_id,
                "response": {
                    "status_code": status,
                    "request_id": f"req_{uuid.uuid4().hex}",
                    "body": body,
                },
                "error": error,
            }
        )
        + b"\n"
    )
