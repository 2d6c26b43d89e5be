"""The lead's HTTP application."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from duo.engine.slot import Task
from duo.errors import PromptError, UsageError
from duo.link.backs import Backs
from duo.link.messages import ROUTE
from duo.link.worker import Door
from duo.llama.model import Model
from duo.server.answers import Shape
from duo.server.api import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    Defaults,
    DetokenizeRequest,
    TokenizeRequest,
    parse,
    task,
)
from duo.server.drafts import draft_route
from duo.server.guard import Guard, Rules, error_response
from duo.server.metrics import ServerMetrics
from duo.server.scheduler import Busy, Job, Scheduler
from duo.server.streams import Events, Stream, check, stream_text, whole_text

MOST_BODY = 8 * 1024 * 1024  # bytes
BODY_S = 30.0  # to send it
MOST_TOKENS = 2**20  # in one request
_JSON = "application/json"

log = logging.getLogger("duo.server")


class Lead:
    """The endpoints. Its methods run on the server's thread."""

    def __init__(self, scheduler: Scheduler, backs: Backs, metrics: ServerMetrics) -> None:
        self._scheduler = scheduler
        self._backs = backs
        self._metrics = metrics
        self._model: Model | None = None
        self._defaults: Defaults | None = None
        self._n_ctx = 0
        self._created = int(time.time())

    def load(self, model: Model, defaults: Defaults, n_ctx: int) -> None:
        """From now on there is a model to ask."""
        self._model, self._n_ctx, self._defaults = model, n_ctx, defaults

    def app(self, rules: Rules, door: Door) -> ASGIApp:
        """The application, behind its guard."""
        routes = [
            *_twice("/health", self._answer(self._health)),
            Route("/metrics", self._answer(self._show_metrics)),
            *_twice("/models", self._answer(self._models)),
            Route("/v1/models/{name:path}", self._answer(self._model_named)),
            *_twice("/chat/completions", self._answer(self._chat), "POST"),
            *_twice("/completions", self._answer(self._complete), "POST"),
            Route("/tokenize", self._answer(self._tokenize), methods=["POST"]),
            Route("/detokenize", self._answer(self._detokenize), methods=["POST"]),
            draft_route(self._backs, door),
            Route(ROUTE, self._answer(_upgrade_needed)),
        ]
        app: ASGIApp = Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _fault})
        app = Guard(app, rules)
        if rules.origins:
            app = CORSMiddleware(
                app,
                sorted(rules.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["Retry-After"],
            )
        return app

    def _answer(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint with its errors as responses."""

        async def answer(request: Request) -> Response:
            try:
                return await endpoint(request)
            except ApiError as error:
                return error_response(error)
            except (PromptError, UsageError) as error:
                return error_response(ApiError(400, str(error)))
            except Busy as error:
                return error_response(ApiError(503, str(error), "unavailable_error"))
            except ClientDisconnect:
                return Response(status_code=499)  # which nobody reads

        return answer

    # What costs nothing

    async def _health(self, _: Request) -> Response:
        if not self._scheduler.ready:
            raise Busy(self._scheduler.why_busy)
        return _json({"status": "ok"})

    async def _show_metrics(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, _: Request) -> Response:
        return _json({"object": "list", "data": [self._about()]})

    async def _model_named(self, request: Request) -> Response:
        _check_model(request.path_params["name"], self._loaded()[1])
        return _json(self._about())

    def _about(self) -> dict[str, Any]:
        model, defaults = self._loaded()
        about = {
            "vocab_type": model.vocab_type,
            "n_vocab": model.n_vocab,
            "n_ctx": self._n_ctx,
            "n_ctx_train": model.n_ctx_train,
            "n_params": model.n_params,
            "size": model.n_bytes,
        }
        return {"id": defaults.model, "object": "model", "created": self._created, "owned_by": "duo", "meta": about}

    async def _tokenize(self, request: Request) -> Response:
        model, _ = self._loaded()
        asked = parse(await _body(request), TokenizeRequest)
        tokens = await anyio.to_thread.run_sync(lambda: model.tokenize(asked.content, add_bos=asked.add_special))
        if asked.with_pieces:
            pieces = (model.piece(token).decode("utf-8", "replace") for token in _tokens(tokens, model))
            return _json({"tokens": [{"id": i, "piece": piece} for i, piece in zip(tokens, pieces, strict=True)]})
        return _json({"tokens": tokens})

    async def _detokenize(self, request: Request) -> Response:
        model, _ = self._loaded()
        tokens = _tokens(parse(await _body(request), DetokenizeRequest).tokens, model)
        text = await anyio.to_thread.run_sync(lambda: model.spelling(tokens))
        return _json({"content": text.decode("utf-8", "replace")})

    # Texts

    async def _chat(self, request: Request) -> Response:
        model, defaults = self._loaded()
        asked = parse(await _body(request), ChatRequest)
        if not asked.messages:
            raise ApiError(400, "messages must not be empty")
        messages = [said.plain() for said in asked.messages]
        _check_model(asked.model, defaults)
        prompt = await anyio.to_thread.run_sync(lambda: model.tokenize(model.apply_chat_template(messages)))
        wanted = await anyio.to_thread.run_sync(lambda: task(asked, prompt, defaults, model.n_vocab, self._n_ctx))
        return await self._write(request, wanted, asked, Shape(defaults.model, chat=True))

    async def _complete(self, request: Request) -> Response:
        model, defaults = self._loaded()
        asked = parse(await _body(request), CompletionRequest)
        _check_model(asked.model, defaults)
        prompt = asked.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            text = prompt
            tokens = await anyio.to_thread.run_sync(lambda: model.tokenize(text))
        else:
            tokens = _tokens(prompt, model)
        wanted = await anyio.to_thread.run_sync(lambda: task(asked, tokens, defaults, model.n_vocab, self._n_ctx))
        return await self._write(request, wanted, asked, Shape(defaults.model, chat=False))

    async def _write(
        self, request: Request, wanted: Task, asked: ChatRequest | CompletionRequest, shape: Shape
    ) -> Response:
        events = Events()
        job = Job(wanted, events.put)
        self._scheduler.submit(job)
        try:
            async with events.while_there(request):
                first = await events.next()
                check(first[0])  # so that what cannot be done has its own status
                if not asked.stream:
                    return _json(shape.whole(await whole_text(first, events), wanted))
        except BaseException:
            self._scheduler.cancel(job)
            raise
        pieces = stream_text(first, events, shape, wanted, include_usage=asked.wants_usage)
        return Stream(pieces, lambda: self._scheduler.cancel(job))

    def _loaded(self) -> tuple[Model, Defaults]:
        if self._model is None or self._defaults is None or not self._scheduler.ready:
            raise Busy(self._scheduler.why_busy)
        return self._model, self._defaults


def _twice(path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str = "GET") -> list[Route]:
    """With /v1 and without, as in llama-server."""
    return [Route(prefix + path, endpoint, methods=[method]) for prefix in ("/v1", "")]


async def _body(request: Request) -> bytes:
    """The body. Raises ApiError if it is too large or too slow."""
    data = bytearray()
    try:
        if int(request.headers.get("content-length", 0)) > MOST_BODY:
            raise ApiError(413, f"the body is larger than {MOST_BODY} bytes")
        with anyio.fail_after(BODY_S):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MOST_BODY:
                    raise ApiError(413, f"the body is larger than {MOST_BODY} bytes")
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {BODY_S:.0f} seconds") from None
    return bytes(data)


def _check_model(name: str | None, defaults: Defaults) -> None:
    if name not in (None, "", "default", defaults.model):
        message = f"there is no model {str(name)[:100]!r} here: this server has {defaults.model!r}"
        raise ApiError(404, message, code="model_not_found")


def _tokens(tokens: list[Any], model: Model) -> list[int]:
    if len(tokens) > MOST_TOKENS:
        raise ApiError(400, f"more than {MOST_TOKENS} tokens")
    if len(tokens) > 1 and not isinstance(tokens[0], int):
        raise ApiError(400, "one prompt at a time")
    if wrong := [token for token in tokens if not isinstance(token, int) or not 0 <= token < model.n_vocab]:
        raise ApiError(400, f"there is no token {wrong[0]!r} in a vocabulary of {model.n_vocab}")
    return tokens


def _json(document: object) -> Response:
    return Response(msgspec.json.encode(document), media_type=_JSON)


async def _upgrade_needed(_: Request) -> Response:
    raise ApiError(426, "this is the WebSocket of backs: duo back --lead")


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(ApiError(error.status_code, str(error.detail)), error.headers)


async def _fault(request: Request, error: Exception) -> Response:
    log.error("a fault at %s: %r", request.url.path, error)
    return error_response(ApiError(500, f"a fault of the server: {type(error).__name__}", "server_error"))
