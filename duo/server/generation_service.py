"""GenerationService: passes clients' requests to an engine, and its steps to the clients."""

import threading
from collections import Counter
from collections.abc import Callable, Hashable

from duo.engine.engine import Engine
from duo.engine.request import Request
from duo.engine.stream import AsyncSteps
from duo.errors import BusyError
from duo.http.listener import MAX_CONNECTIONS
from duo.remote.drafts import RemoteDrafts
from duo.remote.messages import sendable
from duo.server.api_error import STOPPING
from duo.server.prometheus import ServerMetrics
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
        self.metrics = ServerMetrics(lambda: self.n_texts, drafts)
        self.stopped = threading.Event()
        self.n_queue = min(n_queue, MAX_CONNECTIONS // 2)  # others, such as /health, need connections, too
        self.watchers: list[Callable[[Request], None]] = []  # called with each text
        self._alias, self._on_step, self._on_text = alias, on_step, on_text
        self.loaded: Engine | None = None  # the engine, also after stop()
        self._unfinished: dict[Request, None] = {}  # in the order of their requests
        self.last: Request | None = None  # the last text that has ended, if it had begun

    @property
    def n_texts(self) -> int:
        """Number of texts that are being generated or wait in the queue."""
        return len(self.loaded.scheduler.requests) if self.loaded is not None else 0

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
        """If the queue is full, end the last text that waits of the client that has most there.

        Raises BusyError if none has more than `client`, or there is no engine.
        """
        scheduler = self.engine.scheduler
        if len(scheduler.requests) <= self.n_queue:
            return
        waiting = [text for text in self.unfinished if not text.began]
        counts = Counter(text.client for text in waiting)
        error = BusyError(f"the queue is full ({self.n_queue} requests): try again later")
        most, n = max(counts.items(), key=lambda item: item[1], default=(client, 0))
        if n <= counts[client] + 1:
            raise error
        scheduler.fail(error, [text for text in waiting if text.client == most][-1:])

    def begin(self, text: Request) -> AsyncSteps:
        """Put a text into the queue: its steps. Raises DuoError."""
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
        self._unfinished[text] = None
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
