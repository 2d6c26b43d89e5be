"""A client of the chat API of OpenAI-compatible servers."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar

import httpx
import msgspec
from httpx_sse import EventSource

from duo.cli.commands.chat import Answer, Message, Show, limit_remark
from duo.errors import DuoError, UsageError
from duo.http.guard import LOOPBACK_NAMES
from duo.speculation.types import Origin

_PROBE_S = 1.0  # for a server on this machine
_SILENCE_S = 3600.0  # read timeout: the prefill of a long prompt may take that long
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_SOURCES = {source.value: source for source in Origin}
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+):\d+(/.*)?")
_ADVICE = {401: ": check --api-key", 503: ": it is loading or busy, try again later"}
_MAX_BODY = 1 << 24  # bytes of what is no stream: a longer body is cut off, and invalid

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
T = TypeVar("T")


class ServerError(DuoError):
    """A server cannot be reached, or its response is an error or invalid."""

    def __init__(self, message: str, status: int = 0) -> None:
        """`status`: that of the HTTP response; 0: there was none, or it was a success."""
        super().__init__(message)
        self.status = status


class _Model(msgspec.Struct):
    id: str = ""
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


class _Delta(msgspec.Struct, frozen=True):
    content: str = ""
    reasoning_content: str = ""


class _Choice(msgspec.Struct):
    delta: _Delta = _Delta()
    finish_reason: str = ""  # OpenAI's


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: _Count = 0


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    prompt_tokens_details: _Details = _Details()


class _Timings(msgspec.Struct, frozen=True):
    """As llama-server and duo tell them."""

    predicted_n: _Count = 0
    predicted_per_second: float = 0.0
    draft_n: _Count = 0
    draft_n_accepted: _Count = 0


class _Sources(msgspec.Struct, frozen=True):
    sources: list[tuple[str, int]] = []  # what wrote how many characters


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage = _Usage()
    timings: _Timings = _Timings()
    duo: _Sources = _Sources()
    error: Any = None


class _Reading:
    """Reads the chunks of a stream into an answer."""

    def __init__(self, answer: Answer, show: Show) -> None:
        self._answer, self._show = answer, show
        self.reason = ""  # why it has ended; empty: it has not
        self._first_s = self._last_s = 0.0

    def take(self, chunk: _Chunk) -> None:
        """Add a chunk, and show its text."""
        answer, usage, timings = self._answer, chunk.usage, chunk.timings
        for choice in chunk.choices[:1]:
            self.reason = choice.finish_reason or self.reason
            content, reasoning = choice.delta.content, choice.delta.reasoning_content
            if content or reasoning:
                self._last_s = time.monotonic()
                self._first_s = self._first_s or self._last_s
            if reasoning:
                self._show(reasoning, 0, None)
            answer.text += content
            for piece, source in _runs(content, chunk.duo.sources):
                self._show(piece, 0 if source is None else len(piece), source or Origin.DRAFT)
        if usage.prompt_tokens:
            answer.prompt = usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens
        if n := timings.predicted_n:
            seconds = n / timings.predicted_per_second if timings.predicted_per_second else 0.0
            answer.figures = n, seconds, timings.draft_n, timings.draft_n_accepted
        elif (n := usage.completion_tokens) and not answer.figures[0]:
            # The time before the first token is that of the prompt.
            answer.figures = n, n * (self._last_s - self._first_s) / max(n - 1, 1), 0, 0

    def end(self, limit: int) -> None:
        """Say why the answer is empty or incomplete; `limit`: of the request, in tokens; negative: none."""
        answer = self._answer
        if self.reason == "length":
            is_own = limit >= 0 and not 0 < answer.figures[0] < limit  # 0: unknown
            full = "the server's limit of tokens or of the context is reached"
            answer.remark = limit_remark(limit) if is_own else full
        elif not answer.text:
            ended = "the model ended the text " + ("after its reasoning" if self._first_s else "at once")
            answer.remark = f"the answer is empty: {ended if self.reason == 'stop' else _one_line(self.reason)}"


class Server:
    """A server; `model` defaults to its first, `settings` go with every request, `marks` asks a lead for sources."""

    def __init__(
        self, url: str, *, key: str | None, model: str | None, settings: dict[str, Any], marks: bool = False
    ) -> None:
        """Raises UsageError for an invalid URL or key, ServerError for a proxy or certificates that cannot be used."""
        parsed = _parse_url(url)
        self.name = str(parsed.copy_with(userinfo=b"")).rstrip("/")
        if key and not re.fullmatch(r"[!-~]+", key):
            raise UsageError("the API key has characters that are not allowed in HTTP headers")
        # Compression would delay the chunks.
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        # A client for each request: httpx may lose the connection of one that KeyboardInterrupt ends. Proxies cannot
        # reach loopback addresses; loading certificates takes time.
        try:
            self._client = partial(
                httpx.Client, base_url=parsed, headers=headers, trust_env=parsed.host not in LOOPBACK_NAMES,
                verify=httpx.create_ssl_context() if parsed.scheme == "https" else False,
            )  # fmt: skip
            self._client().close()
        except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
            raise ServerError(
                f"cannot use the proxy or the certificates that the environment names ({_one_line(str(error))}): "
                "correct ALL_PROXY, HTTP_PROXY, HTTPS_PROXY or SSL_CERT_FILE"
            ) from error
        self._model, self._settings, self._marks = model, settings, marks
        self._known: tuple[str, bool] | None = None  # see _look_up()

    def _look_up(self) -> tuple[str, bool]:
        """The model that requests name, and whether they ask for sources. Raises ServerError."""
        if self._known is None:
            found = _Model()
            try:
                if self._model is None or self._marks:
                    found = next(iter(self._models(_SILENCE_S)), found)
            except ServerError as error:
                if self._model is None and error.status != httpx.codes.NOT_FOUND:
                    raise
            self._known = self._model or found.id or "default", self._marks and found.owned_by == "duo"
        return self._known

    def _models(self, timeout_s: float) -> list[_Model]:
        with self._send("GET", "/v1/models", None, timeout_s) as response:
            return _parse(next(response.iter_bytes(_MAX_BODY), b""), _Models).data

    def greeting(self) -> str:
        """The model and the address. Raises ServerError."""
        return f"{self._look_up()[0]} at {self.name}"

    def is_there(self) -> bool:
        """Whether a server with this API answers at once."""
        try:
            self._models(_PROBE_S)
        except ServerError as error:
            # It is a server that wants a key, or still loads its model.
            return error.status in (httpx.codes.UNAUTHORIZED, httpx.codes.SERVICE_UNAVAILABLE)
        return True

    def answer(self, messages: list[Message], answer: Answer, show: Show, attempt: int = 0) -> None:
        """Request an answer: see ChatBackend. Whatever happens, the connection is closed. Raises ServerError."""
        known = model, is_lead = self._look_up()
        self._known = None  # looked up again after a failure: it may be another server then
        body: dict[str, Any] = {
            "model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True},
            **self._settings, **({"duo": True} if is_lead else {}),
        }  # fmt: skip
        if attempt and body.get("seed", -1) >= 0:
            body["seed"] += attempt
        reading = _Reading(answer, show)
        with self._send("POST", "/v1/chat/completions", body, _SILENCE_S) as response:
            response.encoding = "utf-8-sig"  # that of events, whatever the header says
            for event in EventSource(response).iter_sse():
                if event.data == "[DONE]":
                    reading.reason = reading.reason or "stop"
                    break
                is_error = event.event == "error"
                chunk = _Chunk(error=_parse(event.data, Any)) if is_error else _parse(event.data or "{}", _Chunk)
                if is_error or chunk.error:
                    raise ServerError(f"the server reports an error: {_reason(chunk.error)}")
                reading.take(chunk)
        if not reading.reason:
            raise ServerError(f"the answer of {self.name} is incomplete")
        reading.end(body.get("max_tokens", -1))
        self._known = known

    @contextmanager
    def _send(self, method: str, path: str, content: Any, timeout_s: float) -> Iterator[httpx.Response]:
        """Raises ServerError, also for an error status."""
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, 5))
        try:
            with self._client() as client, client.stream(method, path, json=content, timeout=timeout) as response:
                if not response.is_success:
                    raise _refusal(response)
                yield response
        except httpx.HTTPError as error:
            words = _one_line(str(error)) or "no reason given"
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                advice = "start `duo lead` there, or use another URL"
                raise ServerError(f"cannot connect to {self.name} ({words}): {advice}") from error
            raise ServerError(f"the answer of {self.name} is incomplete: {words}") from error


def _refusal(response: httpx.Response) -> ServerError:
    """An error status, with the reason in the server's words if it gives any."""
    try:
        words = _reason(_parse(next(response.iter_bytes(_MAX_BODY), b""), Any))
    except ServerError:
        words = _one_line(response.headers.get("location") or response.reason_phrase)
    status = response.status_code
    return ServerError(f"the server responds with status {status} ({words}){_ADVICE.get(status, '')}", status)


def _parse_url(url: str) -> httpx.URL:
    """The URL without /v1; HOST:PORT is one of http. Raises UsageError."""
    try:
        parsed = httpx.URL(f"http://{url}" if _HOST_AND_PORT.fullmatch(url) else url)
        parsed.host.encode("idna")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UsageError(f"{_one_line(url)!r} is not a URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 < (parsed.port or 80) < 1 << 16:
        raise UsageError(f"{url!r} is not a URL such as http://127.0.0.1:5555; a model file is named with -m")
    return parsed.copy_with(path=parsed.path.rstrip("/").removesuffix("/v1"))


def _parse(text: str | bytes, kind: type[T]) -> T:
    """Raises ServerError."""
    try:
        found = json.loads(text, object_pairs_hook=_without_null)
        # A server may cut a text inside of a surrogate pair.
        return msgspec.json.decode(json.dumps(found, ensure_ascii=False).encode(errors="replace"), type=kind)
    except (ValueError, RecursionError):
        raise ServerError("the server sent invalid JSON: is it an OpenAI-compatible server?") from None


def _without_null(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if value is not None}


def _runs(text: str, sources: list[tuple[str, int]]) -> Iterator[tuple[str, Origin | None]]:
    """The parts of `text` by source, None for the target; a server may send any numbers."""
    for name, n in [*sources, ("target", len(text))]:
        if n > 0 and text:
            yield text[:n], _SOURCES.get(name)
            text = text[n:]


def _reason(error: Any) -> str:
    """The message in an error as servers tell it."""
    for key in ("error", "message", "detail"):
        error = error.get(key, error) if isinstance(error, dict) else error
    return _one_line(error) if isinstance(error, str) and error else "no reason given"


def _one_line(text: str) -> str:
    """Without control characters, which could drive a terminal."""
    line = _CONTROLS.sub(" ", text).strip()
    return line if len(line) <= 500 else line[:500] + "…"
