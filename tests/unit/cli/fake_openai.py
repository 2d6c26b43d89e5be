"""A scripted OpenAI-compatible server on a real socket."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Request:
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


class FakeServer:
    """Answers each question with the next of `replies`, and requests for the list of models with `models`."""

    def __init__(self, *replies: Reply, models: Reply = MODELS, port: int = 0) -> None:
        self.requests: list[Request] = []
        self._asked = threading.Condition()
        self.left = threading.Event()  # a client has closed a connection that was held
        self._replies = list(replies)
        self._models = models
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

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
        with self._asked:
            assert self._asked.wait_for(lambda: len(self.questions) >= n, 60)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _reply(self, request: Request) -> Reply:
        with self._asked:
            self.requests.append(request)
            self._asked.notify_all()
        if request.path == "/v1/models":
            return self._models
        return self._replies.pop(0) if self._replies else refuses(404, "nothing is left to say")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = fake._reply(Request(self.command, self.path, headers, body))
                self.close_connection = True
                self.send_response(reply.status)
                names = {"Content-Type": reply.kind, "Transfer-Encoding": "chunked", **reply.headers}
                for name, value in names.items():
                    self.send_header(name, value)
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
                    fake.left.set()

            def _write(self, data: bytes) -> None:
                if data:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
