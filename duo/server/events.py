"""Events: what happens in the lead, as server-sent events for clients that watch it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from itertools import count

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from duo.chat.conversation import Json
from duo.engine.recorder import SHARED, TRANSLATED, Totals
from duo.engine.request import Request
from duo.engine.statistics import Event
from duo.errors import BusyError, ClosedError
from duo.http.listener import MAX_CONNECTIONS
from duo.remote.messages import sendable
from duo.server.generation_service import EventStream, GenerationService, event
from duo.server.requests import STOPPING
from duo.speculation.controller import Controller

MAX_SUBSCRIBERS = min(16, MAX_CONNECTIONS // 8)  # others need connections as well
POLL_S = 1.0  # more often would take time from the threads that decode, as would a page on their machine
MAX_TEXTS = MAX_CONNECTIONS  # whose events wait for one subscriber; then the oldest are left out
_SHOWN = 8  # texts that wait
_LAST_S = 6.0  # of a text that has ended, which the page shows
_POLLS_ALIVE = 15  # after so many, a comment shows that the connection is alive


def lead_state(service: GenerationService, schedule: Json | None) -> Json:
    """The state of a lead, whose model may still be loading. `schedule`: None before the first text."""
    slot, n_texts = service.loaded.slot if service.loaded is not None else None, service.n_texts
    n_running = service.n_running
    model = draft = None
    if slot is not None:
        target, local = slot.target, slot.draft_model
        name, size = service.model_name, target.n_bytes
        model = {"name": name, "description": target.description, "n_ctx": slot.n_ctx, "size": size}
        if local is not None:
            draft = {
                "name": sendable((slot.draft_name or "").removesuffix(".gguf")),
                "vocabulary": SHARED if slot.translation is None else TRANSLATED,
            }
    running = service.loaded.scheduler.running() if service.loaded is not None else []
    waiting = [
        {"id": text.number, "prompt_tokens": len(text.prompt), "pauses": text.n_pauses}
        for text in service.unfinished
        if text not in running
    ]
    backs = [
        {
            "id": back.number,
            "name": back.name,
            "model": back.model,
            "in_use": back.current is not None,
            "round_trip_ms": 1000 * back.estimates.costs.latency_s or None,  # None: it was not measured yet
            **dict(zip(("verified", "accepted"), back.counts, strict=True)),
        }
        for back in service.drafts.connected
    ]
    return {
        "model": model,
        "draft": draft,
        "lookup": slot is not None and slot.lookup is not None,
        "backs": backs,
        "queue": {
            "running": n_running, "waiting": max(0, n_texts - n_running), "limit": service.n_queue,
            "texts": waiting[:_SHOWN],
        },
        "schedule": schedule,
    }  # fmt: skip


def schedule_state(controller: Controller) -> Json:
    """What the controller decided last. Any thread may call this: the list of changes only grows, or is replaced."""
    changes = controller.chooser.changes
    at_token, reason = (changes[-1].tokens, changes[-1].reason) if changes else (0, "")
    return {"now": controller.schedule.value, "at_token": at_token, "reason": reason}


class TextReader:
    """Reads the metrics of a text while its threads append to them. A reading costs no more as the text gets longer."""

    def __init__(self, request: Request, started_s: float, *, has_ended: bool = False) -> None:
        """The times of events are since `started_s`. Operations that ended before now are not read.

        If the text `has_ended` before, those of its last seconds are, and not its beginning.
        """
        self._request = request
        self._has_begun = has_ended
        ended_s = max((record.end for record in request.metrics.events[-1:]), default=0.0) - _LAST_S
        self._started_s, self._since_s = started_s, ended_s if has_ended else time.perf_counter()
        self._totals = Totals(request.metrics)

    def read(self, controller: Controller | None, *, has_ended: bool) -> Iterator[bytes]:
        """Its events since the last call, once it has begun. `controller`: of its proposers."""
        metrics, totals, now_s = self._request.metrics, self._totals, time.perf_counter()
        if not self._has_begun:
            self._has_begun = True
            begin_s = metrics.events[0].start if metrics.events else now_s
            counts = {"prompt_tokens": metrics.n_prompt, "cached_tokens": self._request.n_cached}
            yield self._event("text", state="begins", time_ms=self._ms(begin_s), **counts)
        spans = [
            {
                "lane": record.lane,
                "name": record.name,
                "start_ms": self._ms(record.start),
                "end_ms": self._ms(record.end),
                "tokens": record.n,
            }
            for record in totals.update()
            if isinstance(record, Event) and record.lane != "branches" and record.end >= self._since_s
        ]
        recent, alone_s = totals.recent(now_s), controller.target.alone.time(1).value if controller is not None else 0.0
        yield self._event(
            "progress",
            tokens=totals.n_tokens,
            seconds=totals.seconds,  # since the first token
            tokens_per_s=recent.rate if recent is not None else None,
            alone_tokens_per_s=1 / alone_s if alone_s else None,
            draft={"verified": totals.draft.verified, "accepted": totals.draft.accepted},
            lookup={"verified": totals.lookup.verified, "accepted": totals.lookup.accepted},
            accepted_by_position=totals.draft.accept_rate_by_position,
        )
        if spans:
            yield self._event("spans", spans=spans)
        if has_ended:
            yield self._event(
                "text",
                state="ends",
                time_ms=self._ms(totals.last_s or now_s),
                stop=metrics.stop,
                tokens=totals.n_tokens,
                tokens_per_s=totals.tokens_per_s,  # without its first step, as in `timings`
            )

    def _event(self, name: str, **fields: object) -> bytes:
        return event({"id": self._request.number, **fields}, name)

    def _ms(self, time_s: float) -> float:
        return int(1e6 * (time_s - self._started_s)) / 1000  # round() takes several times as long


class LiveEvents:
    """GET /v1/duo/events. Each subscriber polls what threads record. All but stop() is for the server's thread."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service
        self._started_s = time.perf_counter()
        self._schedule: Json | None = None  # the last one that was seen
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # the server's, once there was a subscriber

    async def events(self, request: HttpRequest) -> Response:
        """Send events until the client disconnects. Raises BusyError."""
        service, readers = self._service, dict[Request, TextReader]()
        if service.stopped.is_set():
            raise BusyError(STOPPING)
        if len(service.watchers) >= MAX_SUBSCRIBERS:
            raise BusyError(f"{MAX_SUBSCRIBERS} clients are receiving events: try again later")
        self._loop = asyncio.get_running_loop()

        def add(text: Request) -> None:
            readers[text] = TextReader(text, self._started_s)
            if len(readers) > MAX_TEXTS:
                del readers[next(iter(readers))]

        for text in service.unfinished:
            add(text)
        pieces = self._poll(readers)
        if request.method == "HEAD":
            await pieces.aclose()
        service.watchers.append(add)
        return EventStream(pieces, lambda: service.watchers.remove(add))

    def stop(self) -> None:
        """End all streams. From any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the server has stopped
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def _poll(self, readers: dict[Request, TextReader]) -> AsyncGenerator[bytes, None]:
        """The events of one subscriber; forgets texts that have ended."""
        service = self._service
        with suppress(BusyError, ClosedError):  # stop(), or the engine was closed
            last = None if readers else service.last
            controller = last.metrics.controller if last is not None else None
            if controller is not None:
                self._schedule = schedule_state(controller)
            state = lead_state(service, self._schedule)
            yield event(state, "state")
            if last is not None:
                for data in TextReader(last, self._started_s, has_ended=True).read(controller, has_ended=False):
                    yield data
            for n in count(1):
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), POLL_S)
                    return
                for text, reader in list(readers.items()):
                    has_ended = text not in service.unfinished  # before its records are read
                    controller = text.metrics.controller
                    if controller is not None:
                        self._schedule = schedule_state(controller)
                    if text.metrics.n_prompt:  # otherwise it waits, or was cancelled while it did
                        for data in reader.read(controller, has_ended=has_ended):
                            yield data
                    if has_ended:
                        readers.pop(text, None)
                if (now := lead_state(service, self._schedule)) != state:
                    state = now
                    yield event(state, "state")
                if n % _POLLS_ALIVE == 0:
                    yield b": keep-alive\n\n"
