"""Asks an OpenAI-compatible server and takes its answers as they come."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

from duo.cli.chat_events import EventReader
from duo.cli.secrets import LOOPBACK_NAMES
from duo.errors import DuoError, UsageError

Message = dict[str, str]

_CONNECT_S = 5.0
_SILENCE_S = 3600.0  # a slow machine may read a long prompt for as long
_LONGEST_BODY = 1 << 24  # bytes of what should be short
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class ServerError(DuoError):
    """A server cannot be reached, or does not answer as it should."""


class Piece(NamedTuple):
    """The next piece of an answer; a draft guessed its first `n_accepted` characters."""

    text: str
    n_accepted: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What is known of one answer or several; 0 is unknown."""

    n_tokens: int = 0
    seconds: float = 0.0
    n_guesses: int = 0
    n_accepted: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.n_tokens + other.n_tokens,
            self.seconds + other.seconds,
            self.n_guesses + other.n_guesses,
            self.n_accepted + other.n_accepted,
        )

    def __str__(self) -> str:
        words = []
        if self.n_tokens:
            words.append("1 token" if self.n_tokens == 1 else f"{self.n_tokens} tokens")
        if self.n_tokens and self.seconds:
            words.append(f"{self.n_tokens / self.seconds:.1f} tokens/s")
        if self.n_guesses:
            words.append(f"{self.n_accepted} of {self.n_guesses} guesses accepted")
        return ", ".join(words)


@dataclass(slots=True)
class Answer:
    """What has come of an answer; the times of its first and last piece in seconds."""

    text: str = ""
    figures: Figures = Figures()
    finished: bool = False
    _first_s: float = 0.0
    _last_s: float = 0.0

    def take(self, document: Any) -> Piece:
        """Take the next of the server's JSON documents. Returns what it adds to the text. Raises ServerError."""
        if not isinstance(document, dict):
            raise ServerError("the server sent JSON that is no part of an answer")
        if document.get("error"):
            raise ServerError(f"the server gave up: {_error_message(document)}")
        choice = _within(document, "choices", 0)
        self.finished |= _within(choice, "finish_reason") is not None
        content = _within(choice, "delta", "content")
        text = _without_surrogates(content) if isinstance(content, str) else ""
        if text:
            self._last_s = time.monotonic()
            self._first_s = self._first_s or self._last_s
            self.text += text
        self._take_figures(document)
        return Piece(text, int(_number(document, "duo", "accepted")))

    def _take_figures(self, document: Any) -> None:
        timings = _within(document, "timings")
        if n_tokens := int(_number(timings, "predicted_n")):
            rate = _number(timings, "predicted_per_second")
            n_guesses, n_accepted = int(_number(timings, "draft_n")), int(_number(timings, "draft_n_accepted"))
            self.figures = Figures(n_tokens, n_tokens / rate if rate else 0.0, n_guesses, n_accepted)
        elif not self.figures.n_tokens and (n_tokens := int(_number(document, "usage", "completion_tokens"))):
            # What was before the first token is the prompt's.
            per_token = (self._last_s - self._first_s) / (n_tokens - 1) if n_tokens > 1 else 0.0
            self.figures = Figures(n_tokens, n_tokens * per_token)


class Server:
    """A server by its address. Without `model`, its first one is asked; `settings` go with every question."""

    def __init__(self, url: str, *, key: str | None, model: str | None, settings: dict[str, float]) -> None:
        """Raises UsageError for what is no address, or a key that HTTP cannot carry."""
        self._url = _parse_url(url)
        self.name = str(self._url.copy_with(userinfo=b"")).rstrip("/")
        if key and not re.fullmatch(r"[!-~]+", key):
            raise UsageError("the API key has characters that no key can have")
        # Compressed text would come in lumps.
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._named = self._model = model
        self._settings = settings

    async def model(self) -> str:
        """The model that is asked: the one that was named, or the server's first. Raises ServerError."""
        if self._model is None:
            self._model = await self._first_model()
        return self._model

    async def answer(self, messages: list[Message], answer: Answer, show: Callable[[Piece], None]) -> None:
        """Ask, and put into `answer` what comes, each piece shown at once. Raises ServerError.

        Whatever ends this, also that its task is cancelled, closes the connection, so that the server is free.
        """
        model = await self.model()
        self._model = self._named  # after a failure it is looked up again: the server may be another one by then
        question = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._settings,
        }
        async with self._send("POST", "/v1/chat/completions", question) as response:
            await _check_status(response)
            kind = response.headers.get("content-type", "nothing").partition(";")[0].strip().lower()
            if kind != "text/event-stream":
                raise ServerError(f"{self.name} answers with {_one_line(kind)}, not with a stream of events")
            await _read_events(response, answer, show)
        if not answer.finished:
            raise ServerError(f"the answer of {self.name} broke off")
        self._model = model

    async def _first_model(self) -> str:
        async with self._send("GET", "/v1/models") as response:
            if response.status_code == httpx.codes.NOT_FOUND:
                return "default"
            await _check_status(response)
            name = _within(_parse(await _body(response)), "data", 0, "id")
        return _without_surrogates(name) if isinstance(name, str) and name else "default"

    @asynccontextmanager
    async def _send(self, method: str, path: str, content: Any = None) -> AsyncIterator[httpx.Response]:
        url = self._url.copy_with(path=self._url.path.rstrip("/") + path)
        client = httpx.AsyncClient(
            timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S),
            # A proxy cannot reach this machine's own servers; and without TLS, certificates would only take time.
            trust_env=self._url.host not in LOOPBACK_NAMES,
            verify=self._url.scheme == "https",
        )
        try:
            async with client, client.stream(method, url, headers=self._headers, json=content) as response:
                yield response
        except httpx.HTTPError as error:
            raise ServerError(self._explain(error)) from error

    def _explain(self, error: httpx.HTTPError) -> str:
        advice = "start `duo lead` there, or name another server"
        words = _one_line(str(error))
        if isinstance(error, httpx.ConnectTimeout):
            return f"nothing answers at {self.name} within {_CONNECT_S:g} s: {advice}"
        if isinstance(error, httpx.TimeoutException):
            return f"{self.name} has said nothing for {_SILENCE_S:g} s: see whether it still works"
        if isinstance(error, httpx.ConnectError):
            refused = "attempts failed" in words or "refused" in words
            return f"nothing answers at {self.name}: {advice}" if refused else f"{self.name} cannot be reached: {words}"
        return f"the answer of {self.name} broke off" + (f": {words}" if words else "")


async def _read_events(response: httpx.Response, answer: Answer, show: Callable[[Piece], None]) -> None:
    reader = EventReader()
    async for data in response.aiter_bytes():
        for kind, text in reader.feed(data):
            if text == "[DONE]":
                answer.finished = True
                return
            document = _parse(text)
            if kind == "error":
                raise ServerError(f"the server gave up: {_error_message(document)}")
            piece = answer.take(document)
            if piece.text:
                show(piece)


async def _check_status(response: httpx.Response) -> None:
    """Raises ServerError, with the server's own words if there are any, unless it accepts the question."""
    if response.is_success:
        return
    try:
        words = _error_message(_parse(await _body(response)))
    except ServerError:
        words = _one_line(response.headers.get("location") or response.reason_phrase)
    status = response.status_code
    text = f"the server answers with status {status} ({words})"
    if status == httpx.codes.SERVICE_UNAVAILABLE:
        wait = response.headers.get("retry-after", "")
        again = f"in {wait} s" if wait.isdecimal() else "later"
        text = f"the server is loading or busy ({words}): ask again {again}"
    elif status == httpx.codes.UNAUTHORIZED:
        text += ": is --api-key the right one?"
    raise ServerError(text)


async def _body(response: httpx.Response) -> bytes:
    """A body that should be short, or the beginning of it."""
    data = bytearray()
    async for more in response.aiter_bytes():
        data += more
        if len(data) > _LONGEST_BODY:
            break
    return bytes(data)


def _parse_url(url: str) -> httpx.URL:
    """The address without /v1. Raises UsageError."""
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UsageError(f"{_one_line(url)!r} is no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 < (parsed.port or 80) < 1 << 16:
        raise UsageError(f"{url!r} is no URL such as http://127.0.0.1:5555")
    return parsed.copy_with(path=parsed.path.rstrip("/").removesuffix("/v1"))


def _parse(text: str | bytes) -> Any:
    """Raises ServerError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ServerError("the server sent what is no JSON: is this an OpenAI-compatible server?") from None


def _within(document: Any, *path: str | int) -> Any:
    """What is at `path` in a document; None where there is nothing."""
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _number(document: Any, *path: str | int) -> float:
    """The number at `path`; 0 where there is none that could be meant."""
    found = _within(document, *path)
    try:
        return found if math.isfinite(found) and found > 0 else 0
    except (TypeError, OverflowError):
        return 0


def _error_message(document: Any) -> str:
    """The server's own words, in one line."""
    words = [_within(document, *path) for path in (("error", "message"), ("error",), ("message",), ("detail",))]
    return next((_one_line(word) for word in words if isinstance(word, str) and word), "no reason is given")


def _one_line(text: str) -> str:
    """For a terminal, which a server must not drive."""
    line = _CONTROLS.sub(" ", _without_surrogates(text)).strip()
    return line if len(line) <= 500 else line[:500] + "…"


def _without_surrogates(text: str) -> str:
    """JSON may have halves of characters, which no encoding has; as many characters as before."""
    return text.encode("utf-8", "replace").decode()
