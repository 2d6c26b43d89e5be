"""A client of the chat API of OpenAI-compatible servers."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from httpx_sse import EventSource, SSEError

from duo.cli.terminal.talk import CLEAR, Answer, Message, Show, limit_remark
from duo.errors import DuoError, UsageError
from duo.link.guard import LOOPBACK_NAMES
from duo.spec.types import Source

_PROBE_S = 1.0  # for a server on this machine
_SILENCE_S = 3600.0  # read timeout: the prefill of a long prompt may take that long
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_FULL = f"the server's limit of tokens or of the context is reached{CLEAR}"
_SOURCES = {source.value: source for source in Source}
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/:@\[\]]+):\d+(/.*)?")


class ServerError(DuoError):
    """A server cannot be reached, or its response is an error or invalid."""

    def __init__(self, message: str, status: int = 0) -> None:
        """`status`: that of the HTTP response; 0: there was none, or it was a success."""
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class _Reading:
    """Reads the chunks of a stream into an answer."""

    answer: Answer
    show: Show
    limit: int = -1  # of the request, in tokens; negative: none
    finished: bool = False
    _reason: Any = None  # OpenAI's finish_reason
    _first_s: float = 0.0
    _last_s: float = 0.0

    def take(self, document: Any) -> None:
        """Add a chunk, and show its text."""
        choice = _within(document, "choices", 0)
        if (reason := _within(choice, "finish_reason")) is not None:
            self.finished = True
            self._reason = reason
        if thought := _text(choice, "delta", "reasoning_content"):
            self._tick()
            self.show(thought, 0, None)
        if text := _text(choice, "delta", "content"):
            self._tick()
            self.answer.text += text
            for piece, source in _runs(text, _within(document, "duo", "sources")):
                self.show(piece, 0 if source is None else len(piece), source or Source.DRAFT)
        self._take_figures(document)

    def end(self) -> None:
        """Say why the answer is empty or incomplete."""
        if self._reason == "length":
            # The number of tokens may be unknown, which is 0.
            own = self.limit >= 0 and not 0 < self.answer.figures[0] < self.limit
            self.answer.remark = limit_remark(self.limit) if own else _FULL
        elif not self.answer.text:
            known = isinstance(self._reason, str) and self._reason not in ("", "stop")
            ended = "the model ended the text " + ("after its reasoning" if self._first_s else "at once")
            self.answer.remark = f"the answer is empty: {_one_line(str(self._reason)) if known else ended}"

    def _tick(self) -> None:
        self._last_s = time.monotonic()
        self._first_s = self._first_s or self._last_s

    def _take_figures(self, document: Any) -> None:
        answer, timings = self.answer, _within(document, "timings")
        if n_prompt := int(_number(document, "usage", "prompt_tokens")):
            n_cached = int(_number(document, "usage", "prompt_tokens_details", "cached_tokens"))
            answer.prompt = (n_prompt, min(n_prompt, n_cached))
        if n_tokens := int(_number(timings, "predicted_n")):
            rate = _number(timings, "predicted_per_second")
            n_verified, n_accepted = int(_number(timings, "draft_n")), int(_number(timings, "draft_n_accepted"))
            answer.figures = (n_tokens, n_tokens / rate if rate else 0.0, n_verified, n_accepted)
        elif not answer.figures[0] and (n_tokens := int(_number(document, "usage", "completion_tokens"))):
            # The time before the first token is that of the prompt.
            per_token = (self._last_s - self._first_s) / (n_tokens - 1) if n_tokens > 1 else 0.0
            answer.figures = (n_tokens, n_tokens * per_token, 0, 0)


class Server:
    """A server; `model` defaults to its first, and `settings` are sent with every request.

    With `marks`, a lead is asked what wrote the characters of its answers.
    """

    def __init__(
        self, url: str, *, key: str | None, model: str | None, settings: dict[str, Any], marks: bool = False
    ) -> None:
        """Raises UsageError for an invalid URL or key."""
        self._url = _parse_url(url)
        self.name = str(self._url.copy_with(userinfo=b"")).rstrip("/")
        if key and not re.fullmatch(r"[!-~]+", key):
            raise UsageError("the API key has characters that are not allowed in HTTP headers")
        # Compression would delay the chunks.
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._named = model
        self._settings = settings
        self._marks = marks
        self._given = None if model is None or marks else (model, False)
        self._known = self._given  # see _look_up()

    def _look_up(self) -> tuple[str, bool]:
        """The model that requests name, and whether they ask for sources. Raises ServerError."""
        try:
            with self._send("GET", "/v1/models", may_lack=True) as response:
                found = response.is_success and _within(_parse_body(response), "data", 0)
        except ServerError:
            if self._named is None:
                raise
            found = None
        is_lead = self._marks and _within(found, "owned_by") == "duo"
        return self._named or _text(found, "id") or "default", is_lead

    def greeting(self) -> str:
        """The model and the address. Raises ServerError."""
        self._known = self._known or self._look_up()
        return f"{self._known[0]} at {self.name}"

    def is_there(self) -> bool:
        """Whether a server with this API answers at once."""
        try:
            with self._send("GET", "/v1/models", timeout_s=_PROBE_S) as response:
                return isinstance(_within(_parse_body(response), "data"), list)
        except ServerError as error:
            # It is a server that wants a key, or still loads its model.
            return error.status in (httpx.codes.UNAUTHORIZED, httpx.codes.SERVICE_UNAVAILABLE)

    def answer(self, messages: list[Message], answer: Answer, show: Show, attempt: int = 0) -> None:
        """Request an answer, and add it to `answer`, showing each piece: see ChatBackend. Raises ServerError.

        The connection is closed in any case, also by Ctrl-C, so that the server stops.
        """
        known = model, is_lead = self._known or self._look_up()
        self._known = self._given  # looked up again after a failure: it may be another server then
        options = {"stream": True, "stream_options": {"include_usage": True}, **self._settings}
        if is_lead:
            options["duo"] = True
        if attempt and options.get("seed", -1) >= 0:
            options["seed"] += attempt
        reading = _Reading(answer, show, options.get("max_tokens", -1))
        with self._send("POST", "/v1/chat/completions", {"model": model, "messages": messages, **options}) as response:
            response.encoding = "utf-8-sig"  # that of events, whatever the header says
            for event in EventSource(response).iter_sse():
                if event.data == "[DONE]":
                    reading.finished = True
                    break
                document = _parse(event.data or "{}")
                if event.event == "error" or _within(document, "error"):
                    raise ServerError(f"the server reports an error: {_error_message(document)}")
                reading.take(document)
        if not reading.finished:
            raise ServerError(f"the answer of {self.name} is incomplete")
        reading.end()
        self._known = known

    @contextmanager
    def _send(
        self, method: str, path: str, content: Any = None, *, may_lack: bool = False, timeout_s: float | None = None
    ) -> Iterator[httpx.Response]:
        """Raises ServerError, also for an error status, except for 404 if the server `may_lack` the path."""
        url = self._url.copy_with(path=self._url.path.rstrip("/") + path)
        try:
            with (
                _client(url, timeout_s or _SILENCE_S) as client,
                client.stream(method, url, headers=self._headers, json=content) as response,
            ):
                if not response.is_success and not (may_lack and response.status_code == httpx.codes.NOT_FOUND):
                    raise ServerError(_refusal(response), response.status_code)
                yield response
        except httpx.HTTPError as error:
            raise ServerError(self._explain(error)) from error

    def _explain(self, error: httpx.HTTPError) -> str:
        words = _one_line(str(error)) or "no reason given"
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return f"cannot connect to {self.name} ({words}): start `duo lead` there, or use another URL"
        if isinstance(error, httpx.TimeoutException):
            return f"{self.name} timed out: no data for {_SILENCE_S:g} s"
        if isinstance(error, SSEError):
            return f"{self.name} does not send an event stream: is it an OpenAI-compatible server?"
        return f"the answer of {self.name} is incomplete: {words}"


def _client(url: httpx.URL, timeout_s: float) -> httpx.Client:
    """Raises ServerError if the environment names a proxy or certificates that cannot be used."""
    try:
        # Proxies cannot reach loopback addresses; loading certificates takes time.
        return httpx.Client(
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 5)), verify=url.scheme == "https",
            trust_env=url.host not in LOOPBACK_NAMES,
        )  # fmt: skip
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
        words = _one_line(str(error)).removesuffix(".")
        raise ServerError(
            f"cannot use the proxy or the certificates that the environment names ({words}): correct ALL_PROXY, "
            "HTTP_PROXY, HTTPS_PROXY or SSL_CERT_FILE"
        ) from error


def _refusal(response: httpx.Response) -> str:
    """The reason for an error status, in the server's words if it gives any."""
    try:
        words = _error_message(_parse_body(response))
    except ServerError:
        words = _one_line(response.headers.get("location") or response.reason_phrase)
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        wait = response.headers.get("retry-after", "")
        return f"the server is loading or busy ({words}): try again {f'in {wait} s' if wait.isdecimal() else 'later'}"
    advice = ": check --api-key" if response.status_code == httpx.codes.UNAUTHORIZED else ""
    return f"the server responds with status {response.status_code} ({words}){advice}"


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


def _parse(text: str | bytes) -> Any:
    """Raises ServerError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ServerError("the server sent invalid JSON: is it an OpenAI-compatible server?") from None


def _parse_body(response: httpx.Response) -> Any:
    return _parse(next(response.iter_bytes(1 << 24), b""))  # a longer body is cut off, and invalid


def _within(document: Any, *path: str | int) -> Any:
    """The value at `path` in a document, or None."""
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _text(document: Any, *path: str | int) -> str:
    """The text at `path`, or an empty one."""
    found = _within(document, *path)
    return _without_surrogates(found) if isinstance(found, str) else ""


def _runs(text: str, sources: Any) -> Iterator[tuple[str, Source | None]]:
    """The parts of `text` by source, None for the target; a server may send anything as `sources`."""
    start = 0
    for run in sources if isinstance(sources, list) else ():
        name, n = _within(run, 0), int(_number(run, 1))
        if n and start < len(text):
            yield text[start : start + n], _SOURCES.get(name) if isinstance(name, str) else None
            start += n
    if start < len(text):
        yield text[start:], None


def _number(document: Any, *path: str | int) -> float:
    """The positive number at `path`, or 0."""
    found = _within(document, *path)
    try:
        return found if math.isfinite(found) and found > 0 else 0
    except (TypeError, OverflowError):
        return 0


def _error_message(document: Any) -> str:
    words = [_within(document, *path) for path in (("error", "message"), ("error",), ("message",), ("detail",))]
    return next((_one_line(word) for word in words if isinstance(word, str) and word), "no reason given")


def _one_line(text: str) -> str:
    """Without control characters, which could drive a terminal."""
    line = _CONTROLS.sub(" ", _without_surrogates(text)).strip()
    return line if len(line) <= 500 else line[:500] + "…"


def _without_surrogates(text: str) -> str:
    """JSON may have surrogates, which cannot be encoded; the number of characters stays the same."""
    return text.encode("utf-8", "replace").decode()
