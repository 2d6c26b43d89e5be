"""Lead: an OpenAI-compatible server for one engine, which remote drafts can connect to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

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
from duo.errors import BusyError, ClosedError, PromptError, UsageError
from duo.link.admission import Admission
from duo.link.guard import ApiError, Guard, Rules, allowed_hosts, in_url, is_loopback
from duo.link.listener import Listener
from duo.link.messages import ROUTE
from duo.link.remote_drafts import RemoteDrafts
from duo.link.route import draft_route
from duo.server.answers import Shape
from duo.server.api import ChatRequest, CompletionRequest, Defaults
from duo.server.bodies import received
from duo.server.chats import Chat, rendered
from duo.server.events import LiveEvents
from duo.server.model_api import ModelApi
from duo.server.page import Page
from duo.server.responses import WARNING_HEADER, Warned, on_error, on_fault
from duo.server.streams import json_response
from duo.server.texts import Texts
from duo.server.tokens import TokenWork, check_text, checked_tokens
from duo.spec.types import Step


class Lead:
    """Listens from construction, serves inside `with`.

    Endpoints run on the server's thread, texts are generated on the engine's. Without an engine, /health reports that
    the model is loading.
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
        page: bool = True,
        on_step: Callable[[Step], None] = lambda _: None,
        on_text: Callable[[TextRequest], None] = lambda _: None,
    ) -> None:
        """Serve `engine`, or none until load(). Port 0: any free port.

        api_keys: clients must send one of them; without any, `host` must be a loopback address.
        allowed_host: host names that a proxy in front uses. cors_origins: web sites whose pages may send requests.
        back_token: token that remote drafts must send; if clients need a key, it is required for remote drafts.
        n_queue: most requests that wait. alias: the model's name for clients.
        defaults: options of texts where a request has none; `random_seed`: with a new seed for each text.
        page: whether a page for browsers is served, at /.
        on_step, on_text: called with every step and every finished text, on the engine's thread.

        Raises UsageError if the address is not available, or if other machines can connect to it without a key.
        """
        if not api_keys and not is_loopback(host):
            raise UsageError(
                f"host {host}: other machines can reach this address, so clients must send an API key", "host"
            )
        self.takes_drafts = bool(back_token or (is_loopback(host) and not api_keys))
        existing = engine.slot.remote if engine is not None else None
        self.drafts = existing if isinstance(existing, RemoteDrafts) else RemoteDrafts()
        text_defaults = Defaults(defaults or GenerationConfig(), random_seed)
        self._texts = Texts(self.drafts, n_queue, text_defaults, on_step, on_text)
        self._work = TokenWork()
        self._model_api = ModelApi(self._texts, self._work, alias, text_defaults)
        self._events = LiveEvents(self._texts, self.drafts, lambda: self.model_name)
        origins = frozenset(o.rstrip("/") for o in cors_origins)
        self._page = Page() if page else None
        public = self._page.paths if self._page is not None else frozenset[str]()
        rules = Rules(api_keys, allowed_hosts(host, allowed_host), origins, public)
        self.app = self._make_app(rules, Admission(back_token, closed=not self.takes_drafts))  # ASGI
        self._listener = Listener(self.app, host, port)
        self.port = self._listener.port
        self.url = f"http://{in_url(host)}:{self.port}"
        if engine is not None:
            self.load(engine)

    def __enter__(self) -> Lead:
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, engine: Engine) -> None:
        """Serve `engine` from now on. Creates contexts of a reasonable size. Raises DuoError."""
        engine.call(lambda slot: slot.attach(self.drafts))
        self._texts.load(engine)

    def wait(self) -> None:
        """Block until stop() or close()."""
        self._texts.stopped.wait()

    def stop(self) -> None:
        """End all texts and reject further requests. From any thread."""
        self._texts.stop()
        self._events.stop()

    def close(self) -> None:
        """Stop, wait a few seconds for responses to end, and close the port. Does not close the engine."""
        self.stop()
        self._listener.close()

    @property
    def n_texts(self) -> int:
        """Number of texts that are being generated or wait in the queue."""
        return self._texts.n_texts

    def _make_app(self, rules: Rules, admission: Admission) -> ASGIApp:
        """The application, behind its guard."""
        routes = [
            *_twice("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/v1/duo/events", self._events.events),
            *_twice("/models", self._model_api.models),
            Route("/v1/models/{name:path}", self._model_api.model),
            *_twice("/chat/completions", self._chat, "POST"),
            *_twice("/completions", self._complete, "POST"),
            Route("/apply-template", self._apply_template, methods=["POST"]),
            Route("/props", self._model_api.props),
            Route("/tokenize", self._model_api.tokenize, methods=["POST"]),
            Route("/detokenize", self._model_api.detokenize, methods=["POST"]),
        ]
        pages = self._page.routes() if self._page is not None else []
        expected = (
            HTTPException, ApiError, PromptError, UsageError, BusyError, ClosedError, ClientDisconnect, RecursionError
        )  # fmt: skip
        app: ASGIApp = Starlette(
            routes=[*routes, *pages, draft_route(self.drafts, admission), Route(ROUTE, _upgrade_required)],
            exception_handlers={**dict.fromkeys(expected, on_error), Exception: on_fault},
        )
        app = Guard(Warned(app), rules)
        if rules.origins:
            app = CORSMiddleware(
                app,
                sorted(rules.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["Retry-After", WARNING_HEADER],
            )
        return app

    # The server and the model

    async def _health(self, _: Request) -> Response:
        engine = self._texts.engine
        if engine.fault is not None:
            raise ApiError(500, f"internal error in the last generation: {engine.fault}", "server_error")
        return json_response({"status": "ok"})

    async def _metrics(self, _: Request) -> Response:
        return Response(self._texts.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @property
    def model_name(self) -> str:
        """The model's name in the API. Raises BusyError before load() and after stop()."""
        return self._model_api.name

    # Texts

    async def _rendered(self, request: Request) -> tuple[ChatRequest, Chat]:
        engine = self._texts.engine
        body = await received(request, self._work, ChatRequest)
        self._model_api.check(body.model)
        return body, await self._work.run(body.size, lambda: rendered(body, engine.slot.target, engine.slot.n_ctx))

    async def _chat(self, request: Request) -> Response:
        engine = self._texts.engine
        body, chat = await self._rendered(request)
        tokens = await self._work.run(len(chat.prompt), lambda: engine.tokenize(chat.prompt))
        shape = Shape(self.model_name, chat=True, format=chat.format(body.reasoning_format))
        return await self._texts.write(request, tokens, body, shape, chat.grammar)

    async def _apply_template(self, request: Request) -> Response:
        _, chat = await self._rendered(request)
        return json_response({"prompt": chat.prompt})

    async def _complete(self, request: Request) -> Response:
        engine = self._texts.engine
        body = await received(request, self._work, CompletionRequest)
        self._model_api.check(body.model)
        prompt = body.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]

        def work() -> list[int]:
            slot = engine.slot
            if not isinstance(prompt, str):
                return checked_tokens(prompt, slot.target)
            check_text(prompt, slot.target, slot.n_ctx)
            return engine.tokenize(prompt)

        tokens = await self._work.run(len(prompt), work)
        return await self._texts.write(request, tokens, body, Shape(self.model_name, chat=False))


def _twice(path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str = "GET") -> list[Route]:
    """With and without /v1, as in llama-server."""
    return [Route(prefix + path, endpoint, methods=[method]) for prefix in ("/v1", "")]


async def _upgrade_required(_: Request) -> Response:
    raise ApiError(426, "this is the WebSocket of remote drafts: connect with duo back")
