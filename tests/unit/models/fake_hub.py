"""A local Hugging Face hub, with as much of the protocol as huggingface_hub uses, and a web server for tests."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_the_right_one"


@dataclass
class FakeRepo:
    files: dict[str, bytes]
    commit: str = "a" * 40
    private: bool = False  # without TOKEN the answer is that it does not exist
    gated: bool = False  # listed, but no file is served
    moves: bool = False  # every request for a file finds another commit


@dataclass
class FakeHub:
    """Its repositories, its address, and the requests that it got."""

    repos: dict[str, FakeRepo]
    url: str = ""
    asked: list[str] = field(default_factory=list)  # paths
    status: int | None = None  # if set, every answer


class QuietHandler(BaseHTTPRequestHandler):
    """Answers requests without a log."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def send(self, status: int, headers: dict[str, str], body: bytes = b"", cut: int = 0) -> None:
        """Without the last `cut` bytes of the body."""
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) - cut])


@contextmanager
def fake_hub(repos: dict[str, FakeRepo]) -> Iterator[FakeHub]:
    """Serve `repos`: /api/models/user/name lists the files; /user/name/resolve/main/file is one."""
    hub = FakeHub(repos)

    class HubHandler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, token = unquote(urlsplit(self.path).path), self.headers["Authorization"]
            hub.asked.append(path)
            if hub.status is not None:
                return self.send(hub.status, {})
            name, _, file = path.removeprefix("/api/models").lstrip("/").partition("/resolve/main/")
            repo = hub.repos.get(name)
            if repo is None or (repo.private and token != f"Bearer {TOKEN}"):
                return self.send(404 if token else 401, {"X-Error-Code": "RepoNotFound"})
            if not file:
                siblings = [{"rfilename": one} for one in repo.files]
                info = {"id": name, "modelId": name, "sha": repo.commit, "private": repo.private, "siblings": siblings}
                return self.send(200, {"Content-Type": "application/json"}, json.dumps(info).encode())
            if repo.gated:
                return self.send(403, {"X-Error-Code": "GatedRepo"})
            if repo.moves:
                repo.commit = hashlib.sha256(repo.commit.encode()).hexdigest()[:40]
            etag = hashlib.sha256(repo.files[file]).hexdigest()
            return self.send(200, {"X-Repo-Commit": repo.commit, "ETag": f'"{etag}"'}, repo.files[file])

        do_HEAD = do_GET

    with served(HubHandler) as hub.url:
        yield hub


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a free local port; the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
