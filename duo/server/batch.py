"""Batch: a file of requests in OpenAI's batch format, answered as a lead answers them, but without a port."""

import asyncio
import fcntl
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import httpx
import msgspec
from starlette.applications import Starlette

from duo.config import GenerationConfig
from duo.engine.engine import Engine
from duo.errors import ApiError, UsageError
from duo.llama import lifeline
from duo.remote.drafts import RemoteDrafts
from duo.server.endpoints import Endpoints
from duo.server.generation_service import GenerationService
from duo.server.requests import HANDLERS, MAX_SLOW, WARNING_HEADER, RequestWork, openai_error

_BOM = b"\xef\xbb\xbf"
_PATH = re.compile(r"/(?!/)[!-~]{0,200}")
_HEAD = b'{"id":"batch_req_'  # of each answer
_PADDING = b"\0 \t\r\n"  # after a power failure, a file may end with zeros
_STREAM = ApiError(400, "stream: an answer of a batch is whole: leave this field out")


class BatchRequest(msgspec.Struct):
    """A line of the requests."""

    custom_id: str
    method: Literal["POST"]
    url: str  # a path
    body: dict[str, msgspec.Raw]


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _AnswerLine(msgspec.Struct):
    """A line of the answers. `response` has the error of a request that was refused, too, as OpenAI's has."""

    id: str
    custom_id: str
    response: _Response
    error: None = None


def read_requests(path: Path) -> tuple[dict[str, BatchRequest], list[str]]:
    """The requests of a file by their `custom_id`, and what is wrong with its other lines. Raises OSError."""
    found, faults = dict[str, BatchRequest](), list[str]()
    with path.open("rb") as file:
        for n, line in enumerate(file, 1):
            try:
                if text := line.removeprefix(_BOM).strip():
                    one = msgspec.json.decode(text, type=BatchRequest)
                    if not _PATH.fullmatch(one.url):
                        raise ValueError("url must be a path, such as /v1/chat/completions")
                    if found.setdefault(one.custom_id, one) is not one:
                        raise ValueError(f"an earlier line has the custom_id {one.custom_id[:100]!r}, too")
            except (msgspec.DecodeError, RecursionError, ValueError) as error:
                faults.append(f"{path}:{n}: {error}")
    return found, faults


class AnswerFile:
    """The answers of a batch, each in a line that is written at once. A context manager."""

    def __init__(self, path: Path) -> None:
        """Opens a file, whose answers are kept; a last line that a kill has cut off is removed.

        Raises UsageError if there is anything else in it, or another batch writes it, and OSError.
        """
        if path.exists() and not path.is_file():
            raise UsageError(f"output {path}: this is no file, from which a batch could go on", "output")
        self._is_new, self.path, self._file = not path.exists(), path, path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"output {path}: another duo batch is writing it", "output") from None
        self.statuses: dict[str, int] = {}  # of each answer, by its `custom_id`
        n_bytes, line = self._file.seek(0), b"\n"
        for n, line in enumerate(self._file, 1):
            text = line.strip(_PADDING)
            try:
                if text:
                    answer = msgspec.json.decode(text, type=_AnswerLine)
                    self.statuses[answer.custom_id] = answer.response.status_code
            except (msgspec.DecodeError, RecursionError, ValueError):
                if line.endswith(b"\n") or text[: len(_HEAD)] != _HEAD[: len(text)]:
                    why = f"line {n} is no answer of a batch: name another file"
                    raise UsageError(f"output {path}: {why}", "output") from None
                text = b""
            if not text and not line.endswith(b"\n"):
                self._file.truncate(n_bytes)
                return
            n_bytes += len(line)
        if not line.endswith(b"\n"):
            self._file.write(b"\n")

    def __enter__(self) -> "AnswerFile":
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_new and not self.statuses:
            self.path.unlink(missing_ok=True)
        with suppress(OSError):  # add() has told of it
            self._file.close()

    def add(self, custom_id: str, status: int, body: bytes) -> None:
        """Write an answer. Raises OSError."""
        response = _Response(status, secrets.token_hex(16), msgspec.Raw(body))
        answer = _AnswerLine(f"batch_req_{secrets.token_hex(16)}", custom_id, response)
        self._file.write(msgspec.json.encode(answer) + b"\n")
        self._file.flush()
        self.statuses[custom_id] = status


class Batch:
    """Answers requests with an engine, as many at once as it writes together."""

    def __init__(self, engine: Engine, defaults: GenerationConfig, *, random_seed: bool) -> None:
        """`defaults`: options of texts where a request has none; `random_seed`: with a new seed for each text."""
        self._engine = engine
        self._service = GenerationService(
            RemoteDrafts(), n_queue=2 * MAX_SLOW, alias=None, on_step=lambda _: None, on_text=lambda _: None
        )
        self._service.loaded = engine
        endpoints = Endpoints(self._service, RequestWork(logs=False), defaults, random_seed)
        self._app = Starlette(routes=endpoints.routes(), exception_handlers=HANDLERS)
        self._app.router.redirect_slashes = False

    def stop(self) -> None:
        """End all texts, whose requests get no answer. From any thread."""
        self._service.stop()
        self._engine.interrupt()

    def answer(self, requests: Iterable[BatchRequest], add: Callable[[str, int, bytes, str], None]) -> None:
        """Call `add` with the `custom_id`, status, body and warning of each answer, until stop().

        Raises what `add` does, and MemoryLimitError or ModelError.
        """
        self._engine.call(lambda slot: slot.reserve(0, -1))
        asyncio.run(self._answer(requests, add))

    async def _answer(self, requests: Iterable[BatchRequest], add: Callable[[str, int, bytes, str], None]) -> None:
        left = iter(requests)
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)

        async def work(client: httpx.AsyncClient) -> None:
            for one in left:
                status, body, warning = _STREAM.status, msgspec.json.encode(openai_error(_STREAM)), ""
                if bytes(one.body.get("stream", b"")) != b"true":
                    try:
                        answer = await client.post(one.url, content=msgspec.json.encode(one.body))
                    except httpx.InvalidURL as error:
                        fault = ApiError(400, f"url: {error}")
                        status, body = fault.status, msgspec.json.encode(openai_error(fault))
                    else:
                        status, body = answer.status_code, answer.content
                        warning = answer.headers.get(WARNING_HEADER, "")
                if self._service.stopped.is_set() or lifeline.is_lost():
                    break
                add(one.custom_id, status, body, warning)

        n_at_once = min(self._engine.slot.n_together, MAX_SLOW)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:  # noqa: S113
            await asyncio.gather(*(work(client) for _ in range(n_at_once)))
