"""GenerationService: passes clients' requests to an engine, and its steps to the clients."""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterable, Mapping
from itertools import count

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from duo.chat.conversation import Json
from duo.engine.engine import Engine
from duo.engine.request import TextRequest
from duo.engine.stream import AsyncSteps
from duo.errors import ApiError, BusyError
from duo.http.guard import CLIENT
from duo.http.listener import MAX_CONNECTIONS
from duo.remote.drafts import RemoteDrafts
from duo.remote.messages import sendable
from duo.server.formatter import Event, Formatter
from duo.server.generation_request import GenerationRequest
from duo.server.prometheus import ServerMetrics
from duo.server.requests import STOPPING, json_response
from duo.speculation.types import Step


class GenerationService:
    """The generations that clients have requested, once there is an engine."""

    def __init__(
        self,
        drafts: RemoteDrafts,
        n_queue: int,
        alias: str | None,
        formatters: Mapping[type, type[Formatter]],
        on_step: Callable[[Step], None],
        on_text: Callable[[TextRequest], None],
    ) -> None:
        """`n_queue`: most requests that wait. `alias`: the model's name for clients; None: the file's.

        `formatters`: of the answers to each kind of body.
        """
        self._formatters = formatters
        self.drafts = drafts
        self.metrics = ServerMetrics(lambda: self.n_texts, drafts)
        self.stopped = threading.Event()
        self.n_queue = min(n_queue, MAX_CONNECTIONS // 2)  # others, such as /health, need connections, too
        self.watchers: list[Callable[[int, TextRequest], None]] = []  # called with each text and its number
        self._alias, self._on_step, self._on_text = alias, on_step, on_text
        self.loaded: Engine | None = None  # the engine, also after stop()
        self.unfinished: dict[TextRequest, int] = {}  # texts in the order of their requests, and their numbers
        self.last: tuple[int, TextRequest] | None = None  # the last text that has ended, if it had begun
        self._numbers = count(1)

    @property
    def n_texts(self) -> int:
        """Number of texts that are being generated or wait in the queue."""
        return self.loaded.n_texts if self.loaded is not None else 0

    @property
    def engine(self) -> Engine:
        """The engine. Raises BusyError before it is loaded and after stop()."""
        if self.loaded is None or self.stopped.is_set():
            raise BusyError(STOPPING if self.stopped.is_set() else "the model is still loading")
        return self.loaded

    @property
    def model_name(self) -> str:
        """The model's name in the API. Raises BusyError before load() and after stop()."""
        return sendable(self._alias or self.engine.slot.target.path.stem)

    def stop(self) -> None:
        """End all texts and reject further requests. From any thread."""
        self.stopped.set()
        if self.loaded is not None:
            self.loaded.fail(BusyError(STOPPING), self.unfinished)

    async def respond(self, request: Request, wanted: GenerationRequest) -> Response:
        """Generate a text. Raises ApiError or DuoError before the response has begun."""
        engine = self.engine
        client = request.scope.get(CLIENT)
        if engine.n_texts > self.n_queue:
            self._make_room(engine, client)
        choices = _Choices(self, wanted, client)

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            choices.cancel()

        watching = asyncio.create_task(watch())
        try:
            if not wanted.body.stream:
                return await choices.whole()
            first = await _collect(choices.steps, only_first=True)
        except BaseException:
            choices.cancel()
            raise
        finally:
            watching.cancel()
        return EventStream(choices.stream(first), choices.cancel)

    def _make_room(self, engine: Engine, client: Hashable) -> None:
        """End the last text that waits of the client that has most. Raises BusyError if none has more than this one."""
        waiting = [text for text in list(self.unfinished) if not text.began]
        counts = Counter(text.client for text in waiting)
        error = BusyError(f"the queue is full ({self.n_queue} requests): try again later")
        most, n = max(counts.items(), key=lambda item: item[1], default=(client, 0))
        if n <= counts[client] + 1:
            raise error
        engine.fail(error, [text for text in waiting if text.client == most][-1:])

    def begin(self, wanted: GenerationRequest, client: Hashable) -> tuple[TextRequest, AsyncSteps, Formatter]:
        """Put a text of a client into the queue. Raises DuoError."""
        engine, steps = self.engine, AsyncSteps()

        def put(step: Step) -> None:
            steps.put(step)
            self._on_step(step)

        def end(error: BaseException | None) -> None:
            try:
                # A request that was cancelled in the queue does not count.
                if text.metrics.n_prompt:
                    self.last = number, text
                if text.metrics.n_prompt or not isinstance(error, BusyError | None):
                    waited_s = max(0.0, text.began - text.metrics.started) if text.began else 0.0
                    self.metrics.add(text.metrics, text.n_cached, text.n_pauses, waited_s)
                    self._on_text(text)
            finally:
                self.unfinished.pop(text, None)
                steps.end(error)

        slot = wanted.options.id_slot
        text = TextRequest(
            wanted.prompt.tokens, wanted.config, put, scored=[] if wanted.scores else None, drafting=wanted.drafting,
            reuses=wanted.options.cache_prompt is not False, client=client, slot=slot if slot is not None else -1,
        )  # fmt: skip
        number = self.unfinished[text] = next(self._numbers)
        try:
            engine.submit(text, end)
        except BaseException:
            self.unfinished.pop(text, None)
            raise
        for watcher in self.watchers:
            watcher(number, text)
        return text, steps, self._formatters[type(wanted.body)](wanted, text, engine.slot.target, self.model_name)


class _Choices:
    """The choices of a request, written one after the other: each waits for its turn behind other clients' texts."""

    def __init__(self, service: GenerationService, wanted: GenerationRequest, client: Hashable) -> None:
        """Puts the first one into the queue. Raises DuoError."""
        first, *rest = wanted.choices()
        self._service, self._rest, self._engine = service, deque(rest), service.engine
        self._client = client
        self._text, self.steps, self._formatter = service.begin(first, client)

    def _begin_next(self) -> bool:
        """Put the next one into the queue, if there is one. Raises DuoError."""
        if not self._rest:
            return False
        before = self._formatter
        self._text, self.steps, self._formatter = self._service.begin(self._rest.popleft(), self._client)
        self._formatter.follow(before)
        return True

    def cancel(self) -> None:
        """End all of them."""
        self._rest.clear()
        self._engine.cancel(self._text)

    async def whole(self) -> Response:
        """The response. Raises ApiError."""
        documents, more = list[Json](), True
        while more:
            found = await _collect(self.steps, only_first=False)
            # There may be much to format.
            documents.append(await anyio.to_thread.run_sync(self._formatter.whole, found))
            more = self._begin_next()
        return await anyio.to_thread.run_sync(json_response, self._formatter.joined(documents))

    async def stream(self, new: list[Step] | None) -> AsyncIterator[bytes]:
        """The response as server-sent events, from the first steps of the first choice."""
        more = True
        while more:
            formatter = self._formatter
            yield encoded(formatter.begin())
            try:
                while new:
                    if data := b"".join(encoded(formatter.push(step)) for step in new):
                        yield data
                    new = await self.steps.next()
                yield encoded(formatter.end())
                if more := self._begin_next():
                    new = await self.steps.next()
            except Exception as error:  # of the generation: the status has been sent already
                yield encoded(formatter.fail(ApiError.of(error)))
                more = False
        yield self._formatter.last


class EventStream(StreamingResponse):
    """Server-sent events. `close` is always called at the end, even if the response never began."""

    def __init__(self, pieces: AsyncIterable[bytes], close: Callable[[], None]) -> None:
        # The last header turns off buffering in nginx.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(pieces, media_type="text/event-stream", headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _collect(steps: AsyncSteps, *, only_first: bool) -> list[Step]:
    """All steps, or those that come first. Raises ApiError if the text fails."""
    found: list[Step] = []
    try:
        while (new := await steps.next()) is not None:
            found += new
            if only_first:
                break
    except Exception as error:
        raise ApiError.of(error) from None
    return found


def encoded(events: Iterable[Event]) -> bytes:
    """Server-sent events."""
    return b"".join(event(document, name) for name, document in events)


def event(document: object, name: str = "") -> bytes:
    """A server-sent event of JSON."""
    return b"%bdata: %b\n\n" % (f"event: {name}\n".encode() if name else b"", msgspec.json.encode(document))
