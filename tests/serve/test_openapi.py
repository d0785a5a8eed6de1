"""Requests that schemathesis makes up from the OpenAPI document: no 5xx, OpenAI's errors."""

from __future__ import annotations

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import validate
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from coachwhip.serve.openapi import ERROR_SCHEMA
from tests.serve.server import Server

EXAMPLES = int(os.environ.get("COACHWHIP_SERVE_EXAMPLES", "12"))
"""Requests for each operation and kind; 200 is the long form."""
OPERATIONS = {
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /health",
    "GET /version",
    "GET /metrics",
    "POST /reset_prefix_cache",
    "POST /tokenize",
    "POST /detokenize",
}

WITH_BODY = ("POST /v1/completions", "POST /v1/chat/completions", "POST /tokenize")


@pytest.fixture(scope="module")
def schema(server: Server):
    """The document as the server gives it."""
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_every_operation_is_described(schema) -> None:
    found = {operation.ok().label for operation in schema.get_all_operations()}
    assert found == OPERATIONS
    schema.validate()


@pytest.mark.parametrize(
    ("label", "mode"),
    [(label, GenerationMode.POSITIVE) for label in sorted(OPERATIONS)]
    + [(label, GenerationMode.NEGATIVE) for label in WITH_BODY],
)
def test_made_up_requests(schema, label: str, mode: GenerationMode) -> None:
    method, _, path = label.partition(" ")
    operation = schema[path][method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    def one(case) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body["max_tokens"] = 2  # a text that nobody reads need not be long
        response = case.call()
        case.validate_response(
            response, checks=[not_a_server_error, response_schema_conformance], headers={}
        )
        if response.status_code >= 400:
            validate(response.json(), ERROR_SCHEMA)

    one()
