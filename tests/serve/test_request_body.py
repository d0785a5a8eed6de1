"""Reading bodies: limits of each and of all together, and that all memory is given back."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request

from coachwhip.openai import ApiError
from coachwhip.serve import request_body
from coachwhip.serve.request_body import TOGETHER, BodyReader


def request(pieces: list[bytes | None], headers: dict[str, str] | None = None) -> Request:
    """Returns a request whose body comes in pieces; None is the end of its connection."""
    left = list(pieces)

    async def receive() -> dict:
        if not left:
            await asyncio.Event().wait()
        piece = left.pop(0)
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    named = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
    return Request({"type": "http", "headers": named}, receive)


def read(reader: BodyReader, one: Request) -> bytes:
    async def whole() -> bytes:
        async with reader.read(one) as body:
            return body

    return asyncio.run(whole())


def test_pieces_become_a_body_up_to_the_limit() -> None:
    reader = BodyReader(6)
    assert read(reader, request([b"abc", b"", b"def"])) == b"abcdef"
    for pieces in ([b"abcdefg"], [b"abc", b"def", b"g"], [b"a"] * 50):
        with pytest.raises(ApiError) as error:
            read(reader, request(pieces))
        assert error.value.status == 413


def test_a_length_that_is_too_long_is_refused_and_the_rest_dropped() -> None:
    with pytest.raises(ApiError, match="the body is 900 bytes"):
        read(BodyReader(6), request([b"a" * 9] * 100, {"content-length": "900"}))


def test_who_waits_to_be_told_sends_nothing() -> None:
    headers = {"content-length": "900", "expect": "100-continue"}
    with pytest.raises(ApiError, match="at most 6 bytes"):
        read(BodyReader(6), request([], headers))


def test_all_bodies_together_have_a_limit() -> None:
    reader = BodyReader(10)

    async def several() -> None:
        async with reader.read(request([b"a" * 10])):
            others = [reader.read(request([b"b" * 10])) for _ in range(TOGETHER - 1)]
            for other in others:
                await other.__aenter__()
            with pytest.raises(ApiError) as error:
                async with reader.read(request([b"c"])):
                    pytest.fail("it was read")
            assert error.value.status == 429 and error.value.code == "too_many_bodies"
            for other in others:
                await other.__aexit__(None, None, None)
        async with reader.read(request([b"c" * 10])) as body:
            assert body == b"c" * 10

    asyncio.run(several())


def test_memory_is_given_back_when_the_client_goes_or_the_body_is_wrong() -> None:
    reader = BodyReader(10)
    for _ in range(3 * TOGETHER):
        with pytest.raises(ClientDisconnect):
            read(reader, request([b"a" * 9, None]))
        with pytest.raises(ApiError):
            read(reader, request([b"a" * 9, b"bb"]))
    assert read(reader, request([b"a" * 10])) == b"a" * 10


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setattr(request_body, "LONGEST_S", 0.02)
    with pytest.raises(ApiError) as error:
        read(BodyReader(10), request([]))
    assert error.value.status == 408 and error.value.code == "body_timeout"
