"""One line of an input: a request with a name."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any

from pydantic_core import from_json, to_json

from ..errors import shown
from ..openai import URLS, ApiError, ChatBody, CompletionBody, parse_body

DIGEST_BYTES = 16
_KEYS = ("custom_id", "method", "url", "body")


class LineError(Exception):
    """What is wrong with a line, in one line of text."""


@dataclass(frozen=True)
class BatchLine:
    """A request of a batch."""

    custom_id: str
    url: str
    body: CompletionBody | ChatBody
    given: dict[str, Any]
    """The body as JSON has it."""

    @property
    def body_digest(self) -> str:
        """32 hex digits over URL and body, however the JSON is laid out."""
        return sha256(to_json([self.url, _sorted(self.given)])).hexdigest()[:32]

    @property
    def form(self) -> bytes:
        """Digest of all of the body but its prompt: many lines have the same."""
        rest = {k: v for k, v in self.given.items() if k not in ("prompt", "messages")}
        return sha256(to_json([self.url, rest])).digest()

    def seed(self, engine_seed: int | None) -> int:
        """Returns the seed of a body that gives none: the same in every run with the same engine
        seed, so that a resumed batch ends like one that was never interrupted."""
        text = f"{self.body_digest} {engine_seed} {self.custom_id}"
        return int.from_bytes(sha256(text.encode()).digest()[:8], "little")


def id_digest(custom_id: str) -> bytes:
    """Returns what stands for an id where there are millions of them."""
    return blake2b(custom_id.encode(), digest_size=DIGEST_BYTES).digest()


def parse_line(raw: bytes) -> BatchLine:
    """Returns the request of a line.

    Raises:
        LineError: It is none, with the field, its value and the fix.
    """
    try:
        line = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise LineError(
            f"no JSON: {str(error).replace(' at line 1 column', ' at column')}"
        ) from None
    if not isinstance(line, dict):
        raise LineError(f"it is {shown(line)}: give a JSON object with {', '.join(_KEYS)}")
    missing = [key for key in _KEYS if key not in line]
    if missing:
        raise LineError(f"{missing[0]} is missing")
    custom_id, url = line["custom_id"], line["url"]
    if not isinstance(custom_id, str) or not custom_id:
        raise LineError(f"custom_id is {shown(custom_id)}: give a non-empty text")
    if line["method"] != "POST":
        raise LineError(f"method is {shown(line['method'])}: give POST")
    if not isinstance(url, str) or url not in URLS:
        raise LineError(f"url is {shown(url)}: give {' or '.join(URLS)}")
    if not isinstance(line["body"], dict):
        raise LineError(f"body is {shown(line['body'])}: give a JSON object")
    try:
        body = parse_body(line["body"], url)
    except ApiError as error:
        raise LineError(f"body: {error}") from None
    if body.stream:
        raise LineError("body: stream is true: a batch has no streams; leave it out")
    return BatchLine(custom_id, url, body, line["body"])


def _sorted(value):
    """Returns JSON data with the keys of all objects in order."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(one) for one in value]
    return value
