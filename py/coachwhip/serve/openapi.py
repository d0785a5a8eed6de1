"""How routes that read their bodies themselves describe them in the OpenAPI document."""

from __future__ import annotations

from pydantic import BaseModel

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_STATUSES = {
    400: "The body cannot be served; the message names the field, its value and the fix",
    401: "There is no valid API key",
    404: "There is no such model",
    408: "The deadline has passed",
    413: "The body is too long",
    429: "Too many requests wait",
    500: "The text could not be finished",
    503: "The engine is starting, or the server is shutting down",
}


def errors(*statuses: int) -> dict[int, dict]:
    """Returns the description of errors with these statuses; all known ones when none is given."""
    content = {"application/json": {"schema": ERROR_SCHEMA}}
    return {
        status: {"description": _STATUSES[status], "content": content}
        for status in statuses or _STATUSES
    }


def described(body: type[BaseModel], summary: str, streams: bool = False) -> dict[str, object]:
    """Returns further arguments of a route that takes a JSON body.

    Args:
        body: Model of the body.
        summary: What the route does.
        streams: Whether it may answer with server-sent events.
    """
    schema = body.model_json_schema(ref_template=f"#/components/schemas/{body.__name__}_{{model}}")
    schema.pop("$defs", None)
    responses = errors()
    if streams:
        responses[200] = {
            "description": "The response, or with stream its events",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/event-stream": {"schema": {"type": "string"}},
            },
        }
    return {
        "summary": summary,
        "responses": responses,
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
    }


def definitions(*bodies: type[BaseModel]) -> dict[str, dict]:
    """Returns the schemas that the bodies' own refer to, under the names that they use."""
    found = {}
    for body in bodies:
        template = f"#/components/schemas/{body.__name__}_{{model}}"
        for name, schema in body.model_json_schema(ref_template=template).get("$defs", {}).items():
            found[f"{body.__name__}_{name}"] = schema
    return found
