"""What is wrong, huge or hostile: 4xx in OpenAI's form, and memory stays flat."""

from __future__ import annotations

import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.serve.server import Server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MIB = 1 << 20


def error_of(status: int, body: bytes) -> dict:
    """Returns the error of a 4xx response in OpenAI's form."""
    assert 400 <= status < 500, (status, body[:300])
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and "\n" not in error["message"] and len(error["message"]) < 600
    assert isinstance(error["type"], str)
    return error


def refused(server: Server, body: bytes | object, path: str = COMPLETIONS) -> dict:
    """Returns the error that a body gets."""
    status, _, data = server.request("POST", path, body)
    return error_of(status, data)


def deep(levels: int) -> bytes:
    return b'{"prompt": ' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"null", None),
        (b'"text"', None),
        (b"[1]", None),
        (b"\xff\xfe\x00", None),
        (b'{"prompt": "\xff\xfe"}', None),
        (b'{"prompt": "\\ud800"}', None),
        (b'{"prompt": "a", "temperature": NaN}', None),
        (b'{"prompt": "a", "temperature": Infinity}', None),
        (b'{"prompt": "a", "temperature": 1e999}', None),
        (b'{"prompt": "a", "max_tokens": 1e3}', "max_tokens"),
        (b'{"prompt": "a", "max_tokens": 9' + b"9" * 5000 + b"}", None),
        (b'{"prompt": "a", "seed": 99999999999999999999999999}', "seed"),
        (b'{"prompt": "a", "max_tokens": 1180591620717411303424}', "max_tokens"),
        (b'{"prompt": "a", "timeout": 1' + b"0" * 400 + b"}", "timeout"),
        (b'{"prompt": "a", "temperature": 1' + b"0" * 400 + b"}", "temperature"),
        (b'{"prompt": "a", "stop_token_ids": [1180591620717411303424]}', "stop_token_ids"),
        (b'{"prompt": "a", "logit_bias": {"5": 1' + b"0" * 400 + b"}}", "logit_bias"),
        (b'{"prompt": "a", "logit_bias": {"' + b"1" * 5000 + b'": 1}}', "logit_bias"),
        (b'{"prompt": "a"} trailing', None),
        (deep(100_000), None),
        (deep(150), None),
        (b'{"prompt": "a", "x": ' + deep(5000) + b"}", None),
        (b"{}", "prompt"),
        (b'{"prompt": []}', "prompt"),
        (b'{"prompt": [1, -1]}', "prompt"),
        (b'{"prompt": [1, 1.5]}', "prompt"),
        (b'{"prompt": [[]]}', "prompt"),
        (b'{"prompt": {"a": 1}}', "prompt"),
        (b'{"prompt": "a", "n": true}', "n"),
        (b'{"prompt": "a", "n": 1000000}', "n"),
        (b'{"prompt": "a", "stream": "yes"}', "stream"),
        (b'{"prompt": "a", "stop": ["a", 5]}', "stop"),
        (b'{"prompt": "a", "logit_bias": {"one": 5}}', "logit_bias"),
        (b'{"prompt": "a", "logit_bias": {"5": "much"}}', "logit_bias"),
        (b'{"prompt": "a", "timeout": 0}', "timeout"),
        (b'{"prompt": "a", "timeout": "soon"}', "timeout"),
        (b'{"prompt": "a", "priority": 3}', "priority"),
        (b'{"prompt": "a", "cache_salt": ""}', "cache_salt"),
        (b'{"prompt": "a", "suffix": "b"}', "suffix"),
        (b'{"prompt": "a", "stream_options": 5, "stream": true}', "stream_options"),
    ],
)
def test_wrong_completions(server: Server, body: bytes, param: str | None) -> None:
    error = refused(server, body)
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"].startswith(param)


def test_numbers_beyond_all_limits_leave_nothing_behind(server: Server) -> None:
    for stream in (False, True):
        for field in ("max_tokens", "min_tokens", "timeout", "top_k", "temperature"):
            refused(server, {"prompt": "a", "n": 2, "stream": stream, field: 10**400})
    metrics = server.request("GET", "/metrics")[2].decode()
    assert f'coachwhip_requests_unfinished{{model_name="{server.model}"}} 0.0' in metrics


@pytest.mark.parametrize("names", [[" x"], ["x "], ["\t"], ["a" * 398, "b"], ["é\r\n\x7f"]])
def test_names_that_no_header_can_hold(server: Server, names: list[str]) -> None:
    for stream in (False, True):
        body = {"prompt": "a", "max_tokens": 1, "stream": stream, **dict.fromkeys(names, 1)}
        status, headers, _ = server.request("POST", COMPLETIONS, body)
        assert status == 200
        assert headers["x-ignored-fields"] in json.dumps(", ".join(names))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": "hello"},
        {"messages": [5]},
        {"messages": [{"role": "pope", "content": "a"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        {"messages": [{"role": "user", "content": "a"}], "tools": 5},
        {"messages": [{"role": "user", "content": "a"}], "logprobs": 5},
        {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "poem"}},
    ],
)
def test_wrong_chats(server: Server, body: dict) -> None:
    assert refused(server, body, CHAT)["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_a_body_of_50_megabytes(server: Server, path: str) -> None:
    before = psutil.Process(server.process.pid).memory_info().rss
    body = b'{"prompt": "' + b"a" * (50 * MIB) + b'"}'
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: server.request("POST", path, body), range(4)))
    for status, _, data in answers:
        assert status == 413
        assert error_of(status, data)["code"] == "request_too_large"
    assert psutil.Process(server.process.pid).memory_info().rss - before < 60 * MIB


def chunked(server: Server, pieces: int, piece: bytes) -> bytes:
    """Returns the beginning of the response to a body without a known length."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        frame = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
        for _ in range(pieces):
            connection.sendall(frame)
        connection.sendall(b"0\r\n\r\n")
        return connection.recv(4096)


def test_a_long_body_of_unknown_length(server: Server) -> None:
    assert chunked(server, 50, b"a" * MIB).startswith(b"HTTP/1.1 413 ")


def test_a_prompt_of_a_million_tokens(server: Server) -> None:
    for prompt in ([5] * 1_000_000, "the people " * 500_000):
        error = refused(server, {"prompt": prompt})
        assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
        assert "4096" in error["message"]
    messages = [{"role": "user", "content": "the people " * 500_000}]
    assert refused(server, {"messages": messages}, CHAT)["code"] == "context_length_exceeded"
    assert refused(server, {"prompt": "a " * 3_000_000}, "/tokenize")["code"]


def test_many_messages_and_prompts(server: Server) -> None:
    messages = [{"role": "user", "content": "a"}] * 100_000
    assert refused(server, {"messages": messages}, CHAT)["code"] == "context_length_exceeded"
    error = refused(server, {"prompt": ["a"] * 5000})
    assert error["code"] == "too_many_texts"


def raw(server: Server, data: bytes) -> tuple[int, bytes]:
    """Sends bytes and returns status and body of the response."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        answer = b""
        with contextlib.suppress(OSError):  # the server may have seen enough
            connection.sendall(data)
        with contextlib.suppress(OSError):
            while piece := connection.recv(65536):
                answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(20_000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: zip\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    ],
)
def test_what_is_no_http_request(server: Server, data: bytes) -> None:
    status, body = raw(server, data)
    assert error_of(status, body)["code"] in ("invalid_http_request", "unsupported")


def test_paths_and_methods(server: Server) -> None:
    for method, path in (
        ("GET", "/v1/completions"),
        ("DELETE", "/v1/models"),
        ("GET", "/v1/models/../../etc/passwd"),
        ("GET", "/page/../../../etc/passwd"),
        ("GET", "/" + "a" * 3000),
        ("POST", "/v2/completions"),
        ("OPTIONS", "/v1/chat/completions"),
    ):
        status, _, body = server.request(method, path)
        assert status in (404, 405)
        error_of(status, body)


def test_tokenizing(server: Server) -> None:
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": "a", "model": "large"}),
        ("/tokenize", {"messages": [{"role": "user"}, 5]}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [2**70]}),
        ("/detokenize", {"tokens": [3072]}),
        ("/detokenize", {"tokens": [10**4000]}),
    ):
        refused(server, body, path)
    text = "These United States — «peace» 🙂"
    found = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 4096
    assert server.post("/detokenize", {"tokens": found["tokens"]}) == {"prompt": text}
    messages = [{"role": "user", "content": text}]
    found = server.post("/tokenize", {"messages": messages, "return_token_strs": True})
    usage = server.post(CHAT, {"messages": messages, "max_tokens": 1})["usage"]
    assert found["count"] == usage["prompt_tokens"] == len(found["token_strs"])


def test_the_server_still_serves(server: Server) -> None:
    assert server.get("/health") == {"status": "ok"}
    assert server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1})["usage"]
