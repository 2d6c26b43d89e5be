"""Streams: pass what a working thread makes to the calling thread or event loop."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from duo.engine.request import Request
from duo.engine.statistics import Statistics
from duo.llama import lifeline
from duo.speculation.types import Step, TokenLogprobs

T = TypeVar("T")
# Polling interval. Waking the consumer takes a core from the decode while the other cores wait for that one: on two
# cores 3.5 % of the time at intervals of 0.02 s (benchmarks/NOTES.md, floor).
PAUSE_S = 0.05
_WAIT_S = 0.5  # a signal that arrives just before a wait is handled only after it


class InterruptibleQueue(Generic[T]):
    """A queue from a working thread to an iterating one, whose waits can be interrupted by signals."""

    def __init__(self) -> None:
        # Called on the iterating thread whenever no item has arrived for `stall_s` seconds.
        self.on_stall: Callable[[], None] = lambda: None
        self.stall_s = 30.0
        self._items: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        # Released at the end. Not an Event: its wait() is Python code, which runs on a core of the decode.
        self._running = threading.Lock()
        self._running.acquire()
        self._error: BaseException | None = None

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.put(item)

    def end(self, error: BaseException | None = None) -> None:
        """End the iteration, with `error` raised in the iterating thread; only the first error counts."""
        self._error = self._error or error
        self._items.put(None)
        with suppress(RuntimeError):  # it has ended before
            self._running.release()

    def run(self, work: Callable[[], object]) -> None:
        """Do `work`, which puts items, then end the iteration, with its exception if it raises one."""
        try:
            work()
            self.end()
        except BaseException as error:
            self.end(error)

    @property
    def n_waiting(self) -> int:
        """Number of items in the queue."""
        return self._items.qsize()

    def __iter__(self) -> Iterator[T]:
        waited_s = 0.0
        while True:
            most_s = min(_WAIT_S, self.stall_s)
            try:
                item = self._items.get(timeout=most_s)
            except queue.Empty:
                waited_s += most_s
                if waited_s >= self.stall_s:
                    self.on_stall()
                    waited_s = 0.0
                continue
            waited_s = 0.0
            if item is None:
                break
            yield item
            if self._items.empty():
                self._running.acquire(timeout=PAUSE_S)
        if self._error is not None:
            raise self._error


@contextmanager
def background(
    work: Callable[[Callable[[T], None], threading.Event], None], name: str, stop: threading.Event | None = None
) -> Iterator[InterruptibleQueue[T]]:
    """Run `work` on its own thread; yields its items, to iterate over.

    Python runs no signal handler while the main thread is inside a C call, so long calls are made here. `work` receives
    a function that puts items, and an event that asks it to stop. Its exception is raised in the iterating thread. The
    end of the `with` block sets the event and joins the thread, unless llama.cpp blocks it forever.
    """
    items, stop = InterruptibleQueue[T](), stop or threading.Event()
    thread = threading.Thread(target=items.run, args=(partial(work, items.put, stop),), name=name)
    with lifeline.notifying(items.end):
        thread.start()
        try:
            yield items
        finally:
            stop.set()
            if not lifeline.is_lost():
                thread.join()


@dataclass(frozen=True, slots=True)
class Completion:
    """A complete text."""

    text: str
    tokens: tuple[int, ...]
    stop_reason: str  # end of text, token limit, stop string, context full, interrupted …: see duo.engine.statistics
    statistics: Statistics
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each of `tokens`, if they were asked for


class Stream:
    """An iterator over the steps of a generation, which close(), the end of `with` and garbage collection cancel."""

    def __init__(self, request: Request, items: InterruptibleQueue[Step], cancel: Callable[[Request], None]) -> None:
        self.request, self.items, self._cancel = request, items, cancel
        self._steps = iter(items)

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        """Wait for the next step. Raises the exception that ended the generation: see Engine.stream()."""
        return next(self._steps)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.request.cancelled.set()  # nothing else: this may run on any thread, under any lock

    def close(self) -> None:
        """Cancel the generation. From any thread. The steps so far can still be iterated over."""
        self._cancel(self.request)

    @property
    def statistics(self) -> Statistics:
        """The statistics so far; complete when the iteration has ended."""
        return self.request.metrics.statistics()

    def completion(self) -> Completion:
        """Wait for the end, and return the remaining steps as one text. Raises what iterating raises."""
        steps = list(self)
        tokens = tuple(token for step in steps for token in step.tokens)
        pieces = b"".join(piece for step in steps for piece in step.pieces)
        logprobs = tuple(found for step in steps for found in step.logprobs)
        text = pieces.decode("utf-8", "replace")
        return Completion(text, tokens, self.request.metrics.stop, self.statistics, logprobs)


class AsyncSteps:
    """Passes steps from the engine's thread to the running event loop.

    The loop is woken for the first step and the end, and polls in between: waking it for every token would take the
    interpreter from the engine's thread between two decodes.
    """

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415 - slow, and not for commands that generate one text

        self._loop = asyncio.get_running_loop()
        self._steps: deque[Step] = deque()
        self._wake = asyncio.Event()
        self._begun = self._ended = False
        self._error: BaseException | None = None

    def put(self, step: Step) -> None:
        """Add a step. From any thread."""
        self._steps.append(step)
        if not self._begun:
            self._begun = True
            self._notify()

    def end(self, error: BaseException | None) -> None:
        """End the iteration, with `error` if it is not None. From any thread."""
        self._error = error
        self._ended = self._begun = True
        self._notify()

    def _notify(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._wake.set)

    @property
    def is_ready(self) -> bool:
        """Whether next() returns at once."""
        return bool(self._steps) or self._ended

    async def next(self) -> list[Step] | None:
        """Wait for one or more steps; None at the end. Raises the error of end()."""
        while not self.is_ready:
            if self._begun:  # all poll at the same moments: each wake-up takes a core from the decode
                self._loop.call_at((self._loop.time() // PAUSE_S + 1) * PAUSE_S, self._wake.set)
            await self._wake.wait()
            self._wake.clear()
        if not self._steps and self._error is not None:
            raise self._error
        return [self._steps.popleft() for _ in range(len(self._steps))] or None
