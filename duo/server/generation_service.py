"""GenerationService: passes clients' requests to an engine, and its steps to the clients."""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence

import anyio
import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from duo.engine.engine import Engine
from duo.engine.request import Request
from duo.engine.stream import PAUSE_S, AsyncSteps
from duo.errors import ApiError, BusyError
from duo.http.guard import CLIENT
from duo.http.listener import MAX_CONNECTIONS
from duo.remote.drafts import RemoteDrafts
from duo.remote.messages import sendable
from duo.server.formatter import Event, Formatter
from duo.server.prometheus import ServerMetrics
from duo.server.requests import STOPPING, json_response
from duo.speculation.types import Step


class GenerationService:
    """The texts that clients have requested, once there is an engine."""

    def __init__(
        self,
        drafts: RemoteDrafts,
        n_queue: int,
        alias: str | None,
        on_step: Callable[[Step], None],
        on_text: Callable[[Request], None],
    ) -> None:
        """`n_queue`: most requests that wait. `alias`: the model's name for clients; None: the file's."""
        self.drafts = drafts
        self.metrics = ServerMetrics(lambda: (self.n_running, self.n_texts, *self._n_decodes), drafts)
        self.stopped = threading.Event()
        self.n_queue = min(n_queue, MAX_CONNECTIONS // 2)  # others, such as /health, need connections, too
        self.watchers: list[Callable[[Request], None]] = []  # called with each text
        self._alias, self._on_step, self._on_text = alias, on_step, on_text
        self.loaded: Engine | None = None  # the engine, also after stop()
        self._unfinished: dict[Request, bool] = {}  # in the order of their requests; whether it is its answer's first
        self.last: Request | None = None  # the last text that has ended, if it had begun

    @property
    def n_texts(self) -> int:
        """Number of texts that are being generated or wait in the queue."""
        return len(self.loaded.scheduler.requests) if self.loaded is not None else 0

    @property
    def n_running(self) -> int:
        """Those of them that are being generated."""
        running = self.loaded.scheduler.running() if self.loaded is not None else []
        return max(len(running), min(1, self.n_texts))  # none between two turns

    @property
    def _n_decodes(self) -> tuple[int, int]:
        scheduler = self.loaded.scheduler if self.loaded is not None else None
        return (scheduler.n_decodes, scheduler.n_busy) if scheduler is not None else (0, 0)

    @property
    def unfinished(self) -> list[Request]:
        """The texts of clients that have not ended, in the order of their requests."""
        return list(self._unfinished)

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
            self.loaded.scheduler.fail(BusyError(STOPPING), self.unfinished)

    def make_room(self, client: Hashable) -> None:
        """If the queue is full, end the last answer that has not begun of the client that has most texts.

        If all of that client's answers have begun, they stay, because nothing that was generated is lost, and the queue
        gets longer. Raises BusyError if nobody has more texts than `client` would have, or there is no engine.
        """
        scheduler = self.engine.scheduler
        if len(scheduler.requests) < self.n_queue + self.engine.slot.n_together:
            return
        counts = Counter(text.client for text in self.unfinished)
        error = BusyError(f"the queue is full ({self.n_queue} requests): try again later")
        most, n = max(counts.items(), key=lambda item: item[1], default=(client, 0))
        if n <= counts[client] + 1:
            raise error
        texts = [text for text, is_first in list(self._unfinished.items()) if is_first and not text.began]
        waiting = [text for text in texts if text.client == most]
        scheduler.fail(error, waiting[-1:])

    def begin(self, text: Request, *, is_first: bool) -> AsyncSteps:
        """Put a text into the queue: its steps. `is_first`: nothing of its answer has begun. Raises DuoError."""
        steps = AsyncSteps()

        def put(step: Step) -> None:
            steps.put(step)
            self._on_step(step)

        def end(error: BaseException | None) -> None:
            try:
                self._count(text, error)
            finally:
                self._unfinished.pop(text, None)
                steps.end(error)

        text.put, text.end, text.metrics.started = put, end, text.metrics.clock.now()
        self._unfinished[text] = is_first
        try:
            self.engine.scheduler.submit(text)
        except BaseException:
            self._unfinished.pop(text, None)
            raise
        for watcher in self.watchers:
            watcher(text)
        return steps

    def _count(self, text: Request, error: BaseException | None) -> None:
        """A text has ended. One that was cancelled in the queue does not count."""
        metrics = text.metrics
        if metrics.n_prompt:
            self.last = text
        if metrics.n_prompt or not isinstance(error, BusyError | None):
            waited_s = max(0.0, text.began - metrics.started) if text.began else 0.0
            self.metrics.add(metrics, text.n_cached, text.n_pauses, waited_s)
            self._on_text(text)


def owner_of(request: HttpRequest) -> str:
    """The key of who asks, if there are several keys: what is kept of a text is for its own key only."""
    client = request.scope.get(CLIENT)
    return client if isinstance(client, str) else ""


async def respond(service: GenerationService, request: HttpRequest, choices: Sequence[Formatter]) -> Response:
    """Generate the texts of all choices. Raises ApiError or DuoError before the response has begun."""
    client = request.scope.get(CLIENT)
    for choice in choices:
        choice.text.client, choice.text.owner = client, owner_of(request)
    service.make_room(client)
    answer = _Answer(service, choices)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        answer.cancel()

    watching = asyncio.create_task(watch())
    try:
        if not choices[0].body.stream:
            return await answer.whole()
        first = await _collect(answer.steps, only_first=True)
    except BaseException:
        answer.cancel()
        raise
    finally:
        watching.cancel()
    return EventStream(answer.stream(first), answer.cancel)


class _Answer:
    """The choices of an answer. Some are written at once. Each waits for its turn behind other clients' texts."""

    def __init__(self, service: GenerationService, choices: Sequence[Formatter]) -> None:
        """Puts the first one into the queue. Raises DuoError."""
        self._engine, self._begin = service.engine, service.begin
        self._formatter, *rest = choices
        self._rest, self._begun = deque(rest), [self._formatter.text]
        self.steps = self._begin(self._formatter.text, is_first=True)
        self._ahead = deque[tuple[Formatter, AsyncSteps]]()  # the next ones, which have begun

    def _begin_next(self) -> bool:
        """Put the next one into the queue, if there is one. Raises DuoError."""
        self._begin_ahead(1)
        if not self._ahead:
            return False
        before, (self._formatter, self.steps) = self._formatter, self._ahead.popleft()
        self._formatter.follow(before)
        return True

    def _begin_ahead(self, n: int) -> None:
        """Put `n` of the next ones into the queue, if there are so many. Raises DuoError."""
        while self._rest and len(self._ahead) < n:
            formatter = self._rest.popleft()
            self._begun.append(formatter.text)
            self._ahead.append((formatter, self._begin(formatter.text, is_first=False)))

    def cancel(self) -> None:
        """End all of them."""
        self._rest.clear()
        for text in self._begun:
            self._engine.scheduler.cancel(text)

    async def whole(self) -> Response:
        """The response. Raises ApiError."""
        documents, more = list[dict[str, object]](), True
        while more:
            found = await _collect(self.steps, only_first=True) or []
            self._begin_ahead(self._engine.slot.n_together - 1)  # they continue the prompt that was read
            found += await _collect(self.steps, only_first=False) if found else []
            # There may be much to format.
            documents.append(await anyio.to_thread.run_sync(self._formatter.whole, found))
            more = self._begin_next()
        return await anyio.to_thread.run_sync(json_response, self._formatter.joined(documents))

    async def stream(self, new: list[Step] | None) -> AsyncIterator[bytes]:
        """The response as server-sent events, as they come, after the first steps of the first choice."""
        running, found, begun = {self._formatter: self.steps}, [(self._formatter, new)], set[Formatter]()
        try:
            while found:
                for formatter, steps in found:
                    if formatter not in begun:  # now its prompt has been read, and scored
                        begun.add(formatter)
                        yield encoded(formatter.begin())
                    if not steps:
                        del running[formatter]
                        yield encoded(formatter.end())
                    elif data := b"".join(encoded(formatter.push(step)) for step in steps):
                        yield data
                while len(running) < self._engine.slot.n_together and self._begin_next():
                    running[self._formatter] = self.steps
                found = await _next(running)
            yield encoded(self._formatter.finish())
        except Exception as error:  # of the generation: the status has been sent already
            self.cancel()
            yield encoded(self._formatter.fail(ApiError.of(error)))
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


async def _next(running: Mapping[Formatter, AsyncSteps]) -> list[tuple[Formatter, list[Step] | None]]:
    """The next steps of those choices that have some, None where there are no more. Raises the error of a text."""
    ready = list(running.items())
    while len(running) > 1 and not (ready := [(one, steps) for one, steps in running.items() if steps.is_ready]):
        await asyncio.sleep(PAUSE_S)
    return [(one, await steps.next()) for one, steps in ready]


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
