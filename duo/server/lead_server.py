"""Lead: an OpenAI-compatible server for one engine, which remote drafts can connect to."""

from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from duo.config import GenerationConfig
from duo.engine.engine import Engine
from duo.engine.request import Request
from duo.errors import UsageError
from duo.http.guard import Guard, allowed_hosts, in_url, is_loopback
from duo.http.listener import DEFAULT_LIMITS, Limits, Listener
from duo.remote.connection import Admission, draft_route
from duo.remote.drafts import RemoteDrafts
from duo.server.endpoints import Endpoints
from duo.server.events import LiveEvents
from duo.server.generation_service import GenerationService
from duo.server.requests import HANDLERS, WARNING_HEADER, RequestWork
from duo.speculation.types import Step

# The page: its static files, which need no key because they contain no secret.
ASSETS = Path(__file__).parent / "assets"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a browser asks each time whether the file has changed
}


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
        slot_save_path: Path | None = None,
        slots: bool = True,
        props: bool = False,
        on_step: Callable[[Step], None] = lambda _: None,
        on_text: Callable[[Request], None] = lambda _: None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Serve `engine`, or none until load(). Port 0: any free port.

        api_keys: clients must send one of them; without any, `host` must be a loopback address.
        allowed_host: host names that a proxy in front uses. cors_origins: web sites whose pages may send requests.
        back_token: token that remote drafts must send; if clients need a key, it is required for remote drafts.
        n_queue: most requests that wait. alias: the model's name for clients.
        defaults: options of texts where a request has none; `random_seed`: with a new seed for each text.
        page: whether a page for browsers is served, at /.
        slot_save_path: folder for conversations that clients save; None: they cannot.
        slots, props: whether GET /slots and POST /props are served.
        on_step, on_text: called with every step and every finished text, on the engine's thread.
        limits: of what clients may take.

        Raises UsageError if the address is not available, or if other machines can connect to it without a key.
        """
        if not api_keys and not is_loopback(host):
            raise UsageError(
                f"host {host}: other machines can reach this address, so clients must send an API key", "host"
            )
        if slot_save_path is not None and not slot_save_path.is_dir():
            raise UsageError(f"slot_save_path: {slot_save_path} is not a folder", "slot_save_path")
        self.takes_drafts, self._keys = bool(back_token or not api_keys), api_keys
        existing = engine.slot.remote if engine is not None else None
        self.drafts = existing if isinstance(existing, RemoteDrafts) else RemoteDrafts()
        self._service = GenerationService(self.drafts, n_queue, alias, on_step, on_text)
        self._events = LiveEvents(self._service)
        admission = Admission(back_token if self.takes_drafts else None, hello_s=limits.hello_s)
        defaults = defaults or GenerationConfig()
        endpoints = Endpoints(self._service, RequestWork(), defaults, random_seed, slot_save_path, slots, props)
        routes = [*endpoints.routes(), Route("/v1/duo/events", self._events.events)]
        routes += [draft_route(self.drafts, admission), *(page_routes() if page else ())]
        app: ASGIApp = Starlette(routes=routes, exception_handlers=HANDLERS)
        origins = frozenset(o.rstrip("/") for o in cors_origins)
        app = Guard(app, allowed_hosts(host, allowed_host), origins, api_keys, has_page=page)
        if origins:
            methods, shown = ["GET", "POST"], ["Retry-After", WARNING_HEADER]
            app = CORSMiddleware(app, sorted(origins), methods, allow_headers=["*"], expose_headers=shown)
        self.app = app  # ASGI
        self._listener = Listener(app, host, port, limits)
        self.port = self._listener.port
        self.url = f"http://{in_url(host)}:{self.port}"
        if engine is not None:
            self.load(engine)

    def __enter__(self) -> "Lead":
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, engine: Engine) -> None:
        """Serve `engine` from now on. Creates contexts of a reasonable size. Raises DuoError."""
        check_memory(engine.slot.config.memory, self._keys)
        engine.slot.memories.in_ram = engine.slot.config.memory is None
        engine.call(lambda slot: slot.attach(self.drafts))
        self._service.loaded = engine

    def wait(self) -> None:
        """Block until stop() or close()."""
        self._service.stopped.wait()

    def stop(self) -> None:
        """End all texts and reject further requests. From any thread."""
        self._service.stop()
        self._events.stop()

    def close(self) -> None:
        """Stop, wait a few seconds for responses to end, and close the port. Does not close the engine."""
        self.stop()
        self._listener.close()

    @property
    def n_texts(self) -> int:
        """Number of texts that are being generated or wait in the queue."""
        return self._service.n_texts

    @property
    def model_name(self) -> str:
        """The model's name in the API. Raises BusyError before load() and after stop()."""
        return self._service.model_name


def check_memory(memory: str | None, api_keys: Sequence[str]) -> None:
    """Raise UsageError if a lead with these keys cannot have this memory: clients would profit from others' texts."""
    if memory not in (None, "off") and len(set(api_keys)) != 1:
        why = f"a lead keeps one only for one API key, and has {len(set(api_keys)) or 'none'}"
        raise UsageError(f"memory {memory}: {why}: clients could notice from the speed what others wrote", "memory")


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def page_routes() -> list[BaseRoute]:
    """index.html at /, the other files at /page/NAME."""
    files = _Files(directory=ASSETS)

    async def index(request: HttpRequest) -> Response:
        return await files.get_response("index.html", request.scope)

    return [Route("/", index), Mount("/page", files)]
