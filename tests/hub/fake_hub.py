"""A hub on the loopback interface: serves files of repositories, and fails where told to."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """One repository and what is wrong with it.

    `cuts` has, for each GET of a file that is to break, the bytes to send before the connection is
    closed; `status` and `code` answer every file, `api_status` and `api_code` everything.
    """

    files: dict[str, bytes]
    branches: tuple[str, ...] = ("main",)
    token: str | None = None
    status: int = 200
    code: str = ""
    api_status: int = 200
    api_code: str = ""
    silent: bool = False
    cuts: dict[str, list[int]] = field(default_factory=dict)


class FakeHub:
    """Repositories by id, and what was asked for.

    `requests` counts (method, repository, file) of files; `ranges` lists the Range headers;
    `agents` and `paths` hold every user agent and path seen.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.ranges: list[str] = []
        self.agents: set[str] = set()
        self.paths: list[str] = []
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, name: str, folder: Path, **wrong) -> Repository:
        files = {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}
        self.repositories[name] = Repository(files, **wrong)
        return self.repositories[name]

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.paths.append(path)
            hub.agents.add(self.headers.get("User-Agent", ""))
            api, file = _API.fullmatch(path), _FILE.fullmatch(path)
            name = (api or file).group(1) if api or file else ""
            repository = hub.repositories.get(name)
            if repository is None:
                return self.refuse(404, "RepoNotFound")
            if repository.silent:
                hub.closing.wait(20)
                self.close_connection = True
                return None
            if repository.api_status != 200:
                return self.refuse(repository.api_status, repository.api_code)
            revision = (api.group(3) if api else file.group(2)) or "main"
            if revision not in (*repository.branches, COMMIT):
                return self.refuse(404, "RevisionNotFound")
            if api:
                return self.send_json(
                    _tree(repository)
                    if api.group(2) == "tree"
                    else {"id": name, "modelId": name, "sha": COMMIT, "siblings": []}
                )
            if repository.status != 200:
                return self.refuse(repository.status, repository.code)
            bearer = self.headers.get("Authorization")
            if repository.token is not None and bearer != f"Bearer {repository.token}":
                return self.refuse(403 if bearer else 401, "GatedRepo")
            if file.group(3) not in repository.files:
                return self.refuse(404, "EntryNotFound")
            return self.send_file(name, repository, file.group(3), with_body)

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send_json(self, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_file(self, name: str, repository: Repository, file: str, with_body: bool) -> None:
            hub.requests[self.command, name, file] += 1
            data, start = repository.files[file], 0
            asked = self.headers.get("Range")
            if asked:
                hub.ranges.append(asked)
                start = int(re.fullmatch(r"bytes=(\d+)-", asked).group(1))
            body = data[start:]
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{_digest(data)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if not with_body:
                return
            cuts = repository.cuts.get(file)
            if cuts:
                self.wfile.write(body[: cuts.pop(0)])
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def _tree(repository: Repository) -> list[dict]:
    return [
        {"type": "file", "path": path, "size": len(data), "oid": _digest(data)}
        for path, data in repository.files.items()
    ]
