"""Lines of inputs."""

from __future__ import annotations

import json
from pathlib import Path

from coachwhip.openai import CHAT_URL, COMPLETIONS_URL


def completion(custom_id: str, prompt: object = "We have", **body) -> dict:
    body = {"prompt": prompt, **body}
    return {"custom_id": custom_id, "method": "POST", "url": COMPLETIONS_URL, "body": body}


def chat(custom_id: str, text: str = "How is the Union?", **body) -> dict:
    body = {"messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT_URL, "body": body}


def write_lines(path: Path, lines: list) -> Path:
    """Writes an input; what is no text or bytes is spelled as JSON."""
    with path.open("wb") as file:
        for line in lines:
            if not isinstance(line, bytes):
                line = json.dumps(line).encode()
            file.write(line + b"\n")
    return path


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def timeless(lines: list[dict]) -> list[dict]:
    """Returns the lines by custom_id, without ids and times."""
    found = []
    for line in sorted(lines, key=lambda line: line["custom_id"]):
        response = line["response"]
        body = {k: v for k, v in response["body"].items() if k not in ("id", "created")}
        if "usage" in body:  # what a cache held depends on what ran before, the text does not
            body["usage"] = {k: v for k, v in body["usage"].items() if not k.endswith("_details")}
        found.append(
            {
                "custom_id": line["custom_id"],
                "status_code": response["status_code"],
                "body": body,
                "error": line["error"],
            }
        )
    return found
