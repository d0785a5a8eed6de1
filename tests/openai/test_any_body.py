"""Whatever JSON a body holds, it is translated or refused by name: nothing else ever happens."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coachwhip.openai import CHAT_URL, COMPLETIONS_URL, URLS, ApiError, parse_body, translate

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.text(max_size=6)
    | st.sampled_from(["user", "function", "text", "json_schema", "auto", "required", "tool"])
)
names = st.text(max_size=4) | st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "function",
        "name",
        "arguments",
        "tool_calls",
        "json_schema",
    ]
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
MESSAGE = {"role": "user", "content": "hello"}
BEGINNINGS = {CHAT_URL: {"messages": [MESSAGE]}, COMPLETIONS_URL: {"prompt": "hello"}}


@pytest.mark.parametrize("url", URLS)
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_body_is_translated_or_refused(frontend, url, data):
    fields = st.sampled_from([*URLS[url].model_fields, "unknown"])
    body = {**BEGINNINGS[url], **data.draw(st.dictionaries(fields, values, max_size=3))}
    try:
        job = translate(parse_body(json.dumps(body), url), frontend)
    except ApiError as error:
        assert error.status in (400, 404)
        assert error.message and "\n" not in error.message and len(error.message) < 1000
        json.dumps(error.body(), allow_nan=False)
    else:
        assert job.requests and all(request.prompt_token_ids for request in job.requests)


@settings(max_examples=300, deadline=None)
@given(messages=st.lists(st.dictionaries(names, values, max_size=4) | st.just(MESSAGE), max_size=3))
def test_a_conversation_is_rendered_or_refused(frontend, messages):
    try:
        translate(parse_body(json.dumps({"messages": messages}), CHAT_URL), frontend)
    except ApiError as error:
        assert error.status == 400 and error.message.isprintable()


@pytest.mark.parametrize("url", URLS)
@given(raw=st.binary(max_size=40))
def test_any_bytes_are_refused_or_parsed(url, raw):
    try:
        parse_body(raw, url)
    except ApiError as error:
        assert error.status == 400
