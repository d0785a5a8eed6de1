"""Stands in for llama-server: what it was started with is its answer to everything."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Answers(BaseHTTPRequestHandler):
    """Is healthy at the second question; tokens are lengths of words."""

    asked = 0

    def do_GET(self) -> None:
        Answers.asked += 1
        self._send({}, 200 if Answers.asked > 1 else 503)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body.get("content", body.get("prompt"))
        self._send(
            {
                "tokens": [len(word) for word in text.split()],
                "choices": [{"text": text.upper() if "--spec-type" in sys.argv else text}],
                "arguments": sys.argv[1:],
            }
        )

    def _send(self, answer: dict, status: int = 200) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


if __name__ == "__main__":
    if "--fail" in sys.argv:
        sys.exit("no such model")
    port = int(sys.argv[sys.argv.index("--port") + 1])
    HTTPServer(("127.0.0.1", port), Answers).serve_forever()
