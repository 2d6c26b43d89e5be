"""Lead: an OpenAI-compatible server for one engine, and the place where remote drafts join."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
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

from duo.config import GenerationConfig
from duo.engine.engine import Engine
from duo.engine.slot import TextRequest
from duo.errors import BusyError, PromptError, UsageError
from duo.link.guard import ApiError, Guard, Rules, allowed_hosts, error_response, in_url, is_loopback
from duo.link.listener import Listener
from duo.link.messages import ROUTE
from duo.link.remote_draft import Admission
from duo.link.remote_drafts import RemoteDrafts
from duo.link.route import draft_route
from duo.llama.model import Model
from duo.server.answers import Shape
from duo.server.api import (
    ChatRequest,
    CompletionRequest,
    Defaults,
    DetokenizeRequest,
    TokenizeRequest,
    parse,
    wanted,
)
from duo.server.metrics import ServerMetrics
from duo.server.streams import Events, EventStream, stream_text
from duo.spec.types import Step

MOST_BODY = 8 * 1024 * 1024  # bytes
BODY_S = 30.0  # to send it
MOST_TOKENS = 2**20  # in one request
LOADING = "the model is still loading"
STOPPING = "the server is stopping"
_JSON = "application/json"

log = logging.getLogger("duo.server")


class Lead:
    """Listens from construction, answers from `with` to its end.

    Its endpoints run on the server's thread, texts are written on the engine's. The port answers before there is an
    engine: /health says so.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 5555,
        api_keys: Sequence[str] = (),
        allowed_host: Sequence[str] = (),
        cors_origins: Sequence[str] = (),
        back_token: str = "",
        n_queue: int = 64,
        alias: str | None = None,
        defaults: GenerationConfig | None = None,
        random_seed: bool = True,
        on_step: Callable[[Step], None] = lambda _: None,
        on_text: Callable[[TextRequest], None] = lambda _: None,
    ) -> None:
        """Serve `engine`, or none until load(). Port 0 takes any that is free.

        api_keys: one of which a client must know; without any, only this machine may be listened on.
        allowed_host: names that clients call this server by, behind a proxy. cors_origins: sites whose pages may ask.
        back_token: what remote drafts must know; where clients need a key, none may join without it.
        n_queue: most requests that wait. alias: the model's name for clients.
        defaults: how texts are written if a request does not say; `random_seed`: with a new seed for each.
        on_step and on_text are told every step, and every text that has ended, on the engine's thread.

        Raises UsageError for an address that cannot be had, or that others reach and nothing protects.
        """
        if not api_keys and not is_loopback(host):
            raise UsageError(f"host {host}: other machines can reach this address, so clients must know a key", "host")
        self.takes_drafts = bool(back_token or (is_loopback(host) and not api_keys))
        existing = engine.slot.remote if engine is not None else None
        self.drafts = existing if isinstance(existing, RemoteDrafts) else RemoteDrafts()
        self._metrics = ServerMetrics(lambda: self.n_texts, self.drafts)
        self._n_queue = n_queue
        self._alias = alias
        self._defaults = defaults or GenerationConfig()
        self._random_seed = random_seed
        self._on_step = on_step
        self._on_text = on_text
        self._engine: Engine | None = None
        self._stopped = threading.Event()
        self._texts: set[TextRequest] = set()  # of clients, that have not ended
        self._created = int(time.time())
        rules = Rules(api_keys, allowed_hosts(host, allowed_host), frozenset(o.rstrip("/") for o in cors_origins))
        self._listener = Listener(self._app(rules, Admission(back_token, closed=not self.takes_drafts)), host, port)
        self.port = self._listener.port
        self.url = f"http://{in_url(host)}:{self.port}"
        if engine is not None:
            self.load(engine)

    def __enter__(self) -> Lead:
        """Answer."""
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """See close()."""
        self.close()

    def load(self, engine: Engine) -> None:
        """From now on there is an engine to ask; its contexts are made as large as is reasonable. Raises DuoError."""
        engine.call(lambda slot: slot.attach(self.drafts))
        self._engine = engine

    def wait(self) -> None:
        """Sleep until stop() or close()."""
        self._stopped.wait()

    def stop(self) -> None:
        """End the texts of all clients and take no more, from any thread."""
        self._stopped.set()
        if self._engine is not None:
            self._engine.fail(BusyError(STOPPING), self._texts)

    def close(self) -> None:
        """Let responses end, for a while, and close the port. A second call does nothing. The engine goes on."""
        self.stop()
        self._listener.close()

    @property
    def n_texts(self) -> int:
        """Texts that are being written or wait for it."""
        return self._engine.n_texts if self._engine is not None else 0

    def _app(self, rules: Rules, admission: Admission) -> ASGIApp:
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
            draft_route(self.drafts, admission),
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
            except BusyError as error:
                return error_response(ApiError(503, str(error), "unavailable_error"))
            except ClientDisconnect:
                return Response(status_code=499)  # which nobody reads

        return answer

    # What costs nothing

    async def _health(self, _: Request) -> Response:
        engine = self._loaded()
        if engine.fault is not None:
            raise ApiError(500, f"a fault of the server in the last text: {engine.fault}", "server_error")
        return _json({"status": "ok"})

    async def _show_metrics(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, _: Request) -> Response:
        return _json({"object": "list", "data": [self._about()]})

    async def _model_named(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return _json(self._about())

    def _about(self) -> dict[str, Any]:
        slot = self._loaded().slot
        model = slot.target
        about = {
            "vocab_type": model.vocab_type,
            "n_vocab": model.n_vocab,
            "n_ctx": slot.n_ctx,
            "n_ctx_train": model.n_ctx_train,
            "n_params": model.n_params,
            "size": model.n_bytes,
        }
        return {"id": self._name(), "object": "model", "created": self._created, "owned_by": "duo", "meta": about}

    def _name(self) -> str:
        return self._alias or self._loaded().slot.target.path.stem

    def _check_model(self, name: str | None) -> None:
        if name not in (None, "", "default", self._name()):
            message = f"there is no model {str(name)[:100]!r} here: this server has {self._name()!r}"
            raise ApiError(404, message, code="model_not_found")

    async def _tokenize(self, request: Request) -> Response:
        model = self._loaded().slot.target
        asked = parse(await _body(request), TokenizeRequest)
        tokens = await anyio.to_thread.run_sync(lambda: model.tokenize(asked.content, add_bos=asked.add_special))
        if asked.with_pieces:
            pieces = (model.piece(token).decode("utf-8", "replace") for token in _tokens(tokens, model))
            return _json({"tokens": [{"id": i, "piece": piece} for i, piece in zip(tokens, pieces, strict=True)]})
        return _json({"tokens": tokens})

    async def _detokenize(self, request: Request) -> Response:
        model = self._loaded().slot.target
        tokens = _tokens(parse(await _body(request), DetokenizeRequest).tokens, model)
        text = await anyio.to_thread.run_sync(lambda: model.spelling(tokens))
        return _json({"content": text.decode("utf-8", "replace")})

    # Texts

    async def _chat(self, request: Request) -> Response:
        engine = self._loaded()
        asked = parse(await _body(request), ChatRequest)
        if not asked.messages:
            raise ApiError(400, "messages must not be empty")
        messages = [said.plain() for said in asked.messages]
        self._check_model(asked.model)
        prompt = await anyio.to_thread.run_sync(lambda: engine.tokenize(engine.apply_chat_template(messages)))
        return await self._write(request, prompt, asked, Shape(self._name(), chat=True))

    async def _complete(self, request: Request) -> Response:
        engine = self._loaded()
        asked = parse(await _body(request), CompletionRequest)
        self._check_model(asked.model)
        prompt = asked.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            text = prompt
            tokens = await anyio.to_thread.run_sync(lambda: engine.tokenize(text))
        else:
            tokens = _tokens(prompt, engine.slot.target)
        return await self._write(request, tokens, asked, Shape(self._name(), chat=False))

    async def _write(
        self, request: Request, prompt: list[int], asked: ChatRequest | CompletionRequest, shape: Shape
    ) -> Response:
        engine = self._loaded()
        slot = engine.slot
        defaults = Defaults(self._defaults, self._random_seed)
        config = await anyio.to_thread.run_sync(
            lambda: wanted(asked, prompt, defaults, slot.target.n_vocab, slot.n_ctx)
        )
        if engine.n_texts > self._n_queue:
            raise BusyError(f"{self._n_queue} requests are waiting already: try again later")
        events = Events()

        def put(step: Step) -> None:
            events.put(step)
            self._on_step(step)

        def end(error: BaseException | None) -> None:
            try:
                # One that left the queue was never begun.
                if text.metrics.n_prompt or not isinstance(error, BusyError | None):
                    self._metrics.add(text.metrics, text.n_cached)
                    self._on_text(text)
            finally:
                self._texts.discard(text)
                events.end(error)

        text = TextRequest(prompt, config, put)
        self._texts.add(text)
        engine.submit(text, end)
        try:
            async with events.while_there(request):
                first = await events.first()
                if not asked.stream:
                    return _json(shape.whole(await events.whole_text(first), text))
        except BaseException:
            engine.cancel(text)
            raise
        pieces = stream_text(first, events, shape, text, include_usage=asked.wants_usage)
        return EventStream(pieces, lambda: engine.cancel(text))

    def _loaded(self) -> Engine:
        if self._engine is None or self._stopped.is_set():
            raise BusyError(STOPPING if self._stopped.is_set() else LOADING)
        return self._engine


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
    raise ApiError(426, "this is the WebSocket of remote drafts: see duo back")


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(ApiError(error.status_code, str(error.detail)), error.headers)


async def _fault(request: Request, error: Exception) -> Response:
    log.error("a fault at %s: %r", request.url.path, error, exc_info=error)
    return error_response(ApiError(500, f"a fault of the server: {type(error).__name__}", "server_error"))
