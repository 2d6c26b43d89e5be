"""A local Hugging Face hub, with as much of the protocol as huggingface_hub uses.

Like the real one it redirects to another host for large files (here: another name of the same).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    """Its repositories, its addresses, and the requests that it got."""

    repos: dict[str, FakeRepo]
    url: str = ""
    store_url: str = ""
    asked: list[str] = field(default_factory=list)  # paths, at both hosts
    sent: list[str] = field(default_factory=list)  # blobs
    status: int | None = None  # if set, every answer of the hub

    def blob(self, digest: str) -> bytes | None:
        blobs = (data for repo in self.repos.values() for data in repo.files.values())
        return next((data for data in blobs if _digest(data) == digest), None)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(path)
        self.answer(path)

    def answer(self, path: str) -> None:
        raise NotImplementedError

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def send(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _HubHandler(_Handler):
    """/api/models/user/name lists the files; /user/name/resolve/main/file redirects to one."""

    def answer(self, path: str) -> None:
        if self.hub.status is not None:
            return self.send(self.hub.status)
        is_info = path.startswith("/api/models/")
        name, _, file = path.removeprefix("/api/models").lstrip("/").partition("/resolve/main/")
        repo = self.hub.repos.get(name)
        token = self.headers["Authorization"]
        if repo is None or (repo.private and token != f"Bearer {TOKEN}"):
            return self.send(404 if token else 401, {"X-Error-Code": "RepoNotFound"})
        return self.send_info(name, repo) if is_info else self.send_pointer(repo, file)

    def send_info(self, name: str, repo: FakeRepo) -> None:
        info = {
            "id": name,
            "modelId": name,
            "sha": repo.commit,
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": file} for file in repo.files],
        }
        self.send(200, {"Content-Type": "application/json"}, json.dumps(info).encode())

    def send_pointer(self, repo: FakeRepo, file: str) -> None:
        if repo.gated:
            return self.send(403, {"X-Error-Code": "GatedRepo"})
        if file not in repo.files:
            return self.send(404, {"X-Error-Code": "EntryNotFound"})
        if repo.moves:
            repo.commit = _digest(repo.commit.encode())[:40]
        digest = _digest(repo.files[file])
        headers = {
            "Location": f"{self.hub.store_url}/{digest}",
            "X-Repo-Commit": repo.commit,
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(repo.files[file])),
        }
        return self.send(302, headers)


class _StoreHandler(_Handler):
    """Serves blobs by their digest; a request with the hub's token is an error, because it is another host."""

    def answer(self, path: str) -> None:
        digest = path.removeprefix("/")
        data = self.hub.blob(digest)
        if data is None or self.headers["Authorization"]:
            return self.send(400)
        self.hub.sent.append(digest)
        return self.send(200, {"ETag": f'"{digest}"'}, data)


@contextmanager
def fake_hub(repos: dict[str, FakeRepo]) -> Iterator[FakeHub]:
    """Serve `repos` on free local ports."""
    hub = FakeHub(repos)
    with ExitStack() as stack:
        hub.url = stack.enter_context(_served(_HubHandler, hub, "127.0.0.1"))
        hub.store_url = stack.enter_context(_served(_StoreHandler, hub, "localhost"))
        yield hub


@contextmanager
def _served(handler: type[_Handler], hub: FakeHub, host: str) -> Iterator[str]:
    bound = type(handler.__name__, (handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), bound) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
