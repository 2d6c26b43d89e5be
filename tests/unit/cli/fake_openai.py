"""A scripted OpenAI-compatible server on a real socket."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

WHOLE = "whole"
BROKEN = "broken"  # the connection ends before the body does
HELD = "held"  # nothing more comes, and the connection stays until the client closes it


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer to a question."""

    body: bytes
    status: int = 200
    kind: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)
    ending: str = WHOLE
    rest: tuple[threading.Event, bytes] | None = None  # more of the body, to be sent after an event


class Request(NamedTuple):
    """What a client has sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n\n"


def piece(text: str | None, **more: Any) -> bytes:
    """A chunk with text; `more` are its other fields."""
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more})


def end(reason: str = "stop", **more: Any) -> bytes:
    """The last chunk, and the end of the stream."""
    return event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **more}) + b"data: [DONE]\n\n"


def says(*texts: str, **more: Any) -> Reply:
    """A whole answer of several pieces; `more` are fields of its last chunk."""
    return Reply(b"".join(piece(text) for text in texts) + end(**more))


def refuses(status: int, message: str, **headers: str) -> Reply:
    """An error as OpenAI's servers tell it; in names of `headers`, _ stands for -."""
    body = json.dumps({"error": {"message": message, "type": "x", "code": status}}).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(body, status, "application/json", names)


MODELS = Reply(b'{"object": "list", "data": [{"id": "first"}, {"id": "second"}]}', kind="application/json")


class FakeServer(ThreadingHTTPServer):
    """Answers each question with the next of `replies`, and requests for the list of models with `models`."""

    def __init__(self, *replies: Reply, models: Reply = MODELS, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.requests: list[Request] = []
        self.asked = threading.Condition()
        self.left = threading.Event()  # a client has closed a connection that was held
        self.replies, self.models = list(replies), models
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def questions(self) -> list[Any]:
        """The bodies of what came to the chat's address."""
        return [request.body for request in self.requests if request.path == "/v1/chat/completions"]

    @property
    def conversations(self) -> list[list[tuple[str, str]]]:
        """Role and text of the messages of each question."""
        return [[(message["role"], message["content"]) for message in body["messages"]] for body in self.questions]

    def wait_for_question(self, n: int) -> None:
        """Until there have been `n`."""
        with self.asked:
            assert self.asked.wait_for(lambda: len(self.questions) >= n, 60)

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_GET(self) -> None:
        self._answer(None, self.server.models)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        replies = self.server.replies
        self._answer(body, replies.pop(0) if replies else refuses(404, "nothing is left to say"))

    def _answer(self, body: Any, reply: Reply) -> None:
        with self.server.asked:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.server.requests.append(Request(self.command, self.path, headers, body))
            self.server.asked.notify_all()
        self.close_connection = True
        self.send_response(reply.status)
        for header in {"Content-Type": reply.kind, "Transfer-Encoding": "chunked", **reply.headers}.items():
            self.send_header(*header)
        self.end_headers()
        self._write(reply.body)
        if reply.rest is not None:
            reply.rest[0].wait(60)
            self._write(reply.rest[1])
        if reply.ending == WHOLE:
            self.wfile.write(b"0\r\n\r\n")
        elif reply.ending == HELD:
            with suppress(ConnectionError):
                self.rfile.read(1)
            self.server.left.set()

    def _write(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, *_: Any) -> None:
        pass
