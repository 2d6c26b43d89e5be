"""Texts: the generations that clients have requested."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import anyio
from starlette.requests import Request
from starlette.responses import Response

from duo.config import GenerationConfig
from duo.engine.engine import Engine
from duo.engine.slot import TextRequest
from duo.errors import BusyError
from duo.link.remote_drafts import RemoteDrafts
from duo.server.answers import Shape
from duo.server.api import ChatRequest, CompletionRequest, Defaults, generation_config
from duo.server.chunks import Chunks
from duo.server.logprobs import AnswerLogprobs
from duo.server.metrics import ServerMetrics
from duo.server.parts import PLAIN
from duo.server.streams import Events, EventStream, json_response, stream_text
from duo.spec.types import Step

LOADING = "the model is still loading"
STOPPING = "the server is stopping"
_MOST_CONVERSIONS = 2  # of schemas at a time: each may take a core for a second


class Texts:
    """Passes clients' requests to an engine, once it is loaded, and its steps to the clients."""

    def __init__(
        self,
        drafts: RemoteDrafts,
        n_queue: int,
        defaults: Defaults,
        on_step: Callable[[Step], None],
        on_text: Callable[[TextRequest], None],
    ) -> None:
        self.metrics = ServerMetrics(lambda: self.n_texts, drafts)
        self.stopped = threading.Event()
        self.n_queue = n_queue
        self.on_submit: Callable[[int, TextRequest], None] | None = None  # with each text and its number
        self._defaults = defaults
        self._on_step = on_step
        self._on_text = on_text
        self._conversions = anyio.CapacityLimiter(_MOST_CONVERSIONS)
        self._n_conversions = 0  # that run or wait
        self.loaded: Engine | None = None  # the engine, also after stop()
        self._requests: dict[TextRequest, int] = {}  # that have not ended, and their numbers
        self._n_submitted = 0

    @property
    def n_texts(self) -> int:
        """Number of texts that are being generated or wait in the queue."""
        return self.loaded.n_texts if self.loaded is not None else 0

    def unfinished(self) -> dict[TextRequest, int]:
        """The texts that have not ended, in the order in which they were requested, and their numbers."""
        return self._requests.copy()

    def is_unfinished(self, request: TextRequest) -> bool:
        """Whether a text has not ended. If it has, its metrics are complete."""
        return request in self._requests

    @property
    def engine(self) -> Engine:
        """The engine. Raises BusyError before load() and after stop()."""
        if self.loaded is None or self.stopped.is_set():
            raise BusyError(STOPPING if self.stopped.is_set() else LOADING)
        return self.loaded

    def load(self, engine: Engine) -> None:
        """Accept requests from now on."""
        self.loaded = engine

    def stop(self) -> None:
        """End all texts and reject further requests. From any thread."""
        self.stopped.set()
        if self.loaded is not None:
            self.loaded.fail(BusyError(STOPPING), self._requests)

    def _check_queue(self, n_waiting: int) -> None:
        if n_waiting > self.n_queue:
            raise BusyError(f"the queue is full ({self.n_queue} requests): try again later")

    async def _convert(self, options: Callable[[], GenerationConfig]) -> GenerationConfig:
        """The options of a request with a schema. Raises ApiError, BusyError."""
        self._check_queue(self._n_conversions - _MOST_CONVERSIONS)
        self._n_conversions += 1
        try:
            return await anyio.to_thread.run_sync(options, limiter=self._conversions)
        finally:
            self._n_conversions -= 1

    async def write(
        self,
        request: Request,
        prompt: list[int],
        body: ChatRequest | CompletionRequest,
        shape: Shape,
        calls: Callable[[], str] | None = None,
    ) -> Response:
        """Generate a text; `calls`: see generation_config().

        Raises ApiError, DuoError or ClientDisconnect before the response has begun.
        """
        engine = self.engine
        slot = engine.slot
        options = partial(generation_config, body, prompt, self._defaults, slot.target, slot.n_ctx, calls)
        if body.has_schema:
            config = await self._convert(options)
        else:
            config = options()
        if config.grammar is not None and calls is None:
            shape.format = PLAIN  # such a grammar has no room for a thought
        self._check_queue(engine.n_texts)
        wanted = config.n_logprobs is not None
        logprobs = AnswerLogprobs(slot.target, chat=shape.is_chat) if wanted else None
        events = Events()

        def put(step: Step) -> None:
            events.put(step)
            self._on_step(step)

        def end(error: BaseException | None) -> None:
            try:
                # A request that was cancelled in the queue does not count.
                if text.metrics.n_prompt or not isinstance(error, BusyError | None):
                    self.metrics.add(text.metrics, text.n_cached)
                    self._on_text(text)
            finally:
                self._requests.pop(text, None)
                events.end(error)

        text = TextRequest(prompt, config, put)
        self._n_submitted += 1
        self._requests[text] = self._n_submitted
        try:
            engine.submit(text, end)
        except BaseException:
            self._requests.pop(text, None)
            raise
        if self.on_submit is not None:
            self.on_submit(self._n_submitted, text)
        try:
            async with events.while_connected(request):
                first = await events.first()
                if not body.stream:
                    steps = await events.all(first)
                    if logprobs is None:
                        return json_response(shape.whole(steps, text))
                    work = partial(shape.whole, steps, text, logprobs)
                    return await anyio.to_thread.run_sync(lambda: json_response(work()))  # there may be many
        except BaseException:
            engine.cancel(text)
            raise
        chunks = Chunks(shape, text, logprobs, sources=bool(body.duo))
        pieces = stream_text(first, events, chunks, include_usage=body.wants_usage)
        return EventStream(pieces, lambda: engine.cancel(text))
