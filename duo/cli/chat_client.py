"""Asks an OpenAI-compatible server and takes its answers as they come."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from httpx_sse import EventSource, SSEError

from duo.errors import DuoError, UsageError
from duo.link.guard import LOOPBACK_NAMES

Message = dict[str, str]
Show = Callable[[str, int], None]  # takes a piece of text, and how many of its characters a draft had guessed

_SILENCE_S = 3600.0  # a slow machine may read a long prompt for as long
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class ServerError(DuoError):
    """A server cannot be reached, or does not answer as it should."""


@dataclass(slots=True)
class Answer:
    """What has come of an answer; the times of its first and last piece in seconds."""

    text: str = ""
    figures: tuple[int, float, int, int] = (0, 0.0, 0, 0)  # tokens, seconds, guesses, accepted ones; 0 is unknown
    finished: bool = False
    _first_s: float = 0.0
    _last_s: float = 0.0

    def take(self, document: Any, show: Show) -> None:
        """Take the next of the server's JSON documents, and show what it adds to the text."""
        choice = _within(document, "choices", 0)
        self.finished |= _within(choice, "finish_reason") is not None
        content = _within(choice, "delta", "content")
        if isinstance(content, str) and content:
            self._last_s = time.monotonic()
            self._first_s = self._first_s or self._last_s
            text = _without_surrogates(content)
            self.text += text
            show(text, int(_number(document, "duo", "accepted")))
        timings = _within(document, "timings")
        if n_tokens := int(_number(timings, "predicted_n")):
            rate = _number(timings, "predicted_per_second")
            n_guesses, n_accepted = int(_number(timings, "draft_n")), int(_number(timings, "draft_n_accepted"))
            self.figures = (n_tokens, n_tokens / rate if rate else 0.0, n_guesses, n_accepted)
        elif not self.figures[0] and (n_tokens := int(_number(document, "usage", "completion_tokens"))):
            # What was before the first token is the prompt's.
            per_token = (self._last_s - self._first_s) / (n_tokens - 1) if n_tokens > 1 else 0.0
            self.figures = (n_tokens, n_tokens * per_token, 0, 0)


def describe(*answers: Answer) -> str:
    """What is known of them, added up; empty if nothing is."""
    figures = zip(*(answer.figures for answer in answers), strict=True)
    n_tokens, seconds, n_guesses, n_accepted = map(sum, figures)
    words = [
        f"{n_tokens} token{'s' if n_tokens > 1 else ''}" if n_tokens else "",
        f"{n_tokens / seconds:.1f} tokens/s" if n_tokens and seconds else "",
        f"{n_accepted} of {n_guesses} guesses accepted" if n_guesses else "",
    ]
    return ", ".join(filter(None, words))


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

    def model(self) -> str:
        """The model that is asked: the one that was named, or the server's first. Raises ServerError."""
        if self._model is None:
            with self._send("GET", "/v1/models", may_lack=True) as response:
                found = response.is_success and _within(_parse_body(response), "data", 0, "id")
            self._model = _without_surrogates(found) if isinstance(found, str) and found else "default"
        return self._model

    def answer(self, messages: list[Message], answer: Answer, show: Show) -> None:
        """Ask, and put into `answer` what comes, each piece shown at once. Raises ServerError.

        Whatever ends this, also Ctrl-C, closes the connection, so that the server is free.
        """
        model = self.model()
        self._model = self._named  # after a failure it is looked up again: the server may be another one by then
        options = {"stream": True, "stream_options": {"include_usage": True}, **self._settings}
        with self._send("POST", "/v1/chat/completions", {"model": model, "messages": messages, **options}) as response:
            response.encoding = "utf-8-sig"  # in whatever encoding they are said to be, events are in this
            for event in EventSource(response).iter_sse():
                if event.data == "[DONE]":
                    answer.finished = True
                    break
                document = _parse(event.data or "{}")
                if event.event == "error" or _within(document, "error"):
                    raise ServerError(f"the server gave up: {_error_message(document)}")
                answer.take(document, show)
        if not answer.finished:
            raise ServerError(f"the answer of {self.name} broke off")
        self._model = model

    @contextmanager
    def _send(self, method: str, path: str, content: Any = None, *, may_lack: bool = False) -> Iterator[httpx.Response]:
        """Raises ServerError, also for a refusal, but for a 404 if the server may lack `path`."""
        url = self._url.copy_with(path=self._url.path.rstrip("/") + path)
        try:
            # A proxy cannot reach this machine's own servers; and without TLS, certificates would only take time.
            client = httpx.Client(
                timeout=httpx.Timeout(_SILENCE_S, connect=5), verify=url.scheme == "https",
                trust_env=url.host not in LOOPBACK_NAMES,
            )  # fmt: skip
            with client, client.stream(method, url, headers=self._headers, json=content) as response:
                if not response.is_success and not (may_lack and response.status_code == httpx.codes.NOT_FOUND):
                    raise ServerError(_refusal(response))
                yield response
        except httpx.HTTPError as error:
            raise ServerError(self._explain(error)) from error

    def _explain(self, error: httpx.HTTPError) -> str:
        words = _one_line(str(error)) or "no reason is given"
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return f"{self.name} cannot be reached ({words}): start `duo lead` there, or name another server"
        if isinstance(error, httpx.TimeoutException):
            return f"{self.name} has said nothing for {_SILENCE_S:g} s: see whether it still works"
        if isinstance(error, SSEError):
            return f"{self.name} does not answer with a stream of events: is this an OpenAI-compatible server?"
        return f"the answer of {self.name} broke off: {words}"


def _refusal(response: httpx.Response) -> str:
    """Why a server does not accept a question, in its own words if there are any."""
    try:
        words = _error_message(_parse_body(response))
    except ServerError:
        words = _one_line(response.headers.get("location") or response.reason_phrase)
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        wait = response.headers.get("retry-after", "")
        return f"the server is loading or busy ({words}): ask again {f'in {wait} s' if wait.isdecimal() else 'later'}"
    advice = ": is --api-key the right one?" if response.status_code == httpx.codes.UNAUTHORIZED else ""
    return f"the server answers with status {response.status_code} ({words}){advice}"


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


def _parse_body(response: httpx.Response) -> Any:
    return _parse(next(response.iter_bytes(1 << 24), b""))  # it should be short, or else is no JSON


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
