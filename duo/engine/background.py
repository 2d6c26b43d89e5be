"""Work on a background thread, whose results the calling thread iterates over."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from duo.llama import lifeline

T = TypeVar("T")
# Polling interval. Waking the consumer takes a core from the decode while the other cores wait for that one: on two
# cores 3.5 % of the time at intervals of 0.02 s (benchmarks/NOTES.md, floor).
PAUSE_S = 0.05


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

    @property
    def n_waiting(self) -> int:
        """Number of items in the queue."""
        return self._items.qsize()

    def __iter__(self) -> Iterator[T]:
        while True:
            try:
                item = self._items.get(timeout=self.stall_s)
            except queue.Empty:
                self.on_stall()
                continue
            if item is None:
                break
            yield item
            if self._items.empty():
                self._running.acquire(timeout=PAUSE_S)
        if self._error is not None:
            raise self._error


class Background(Generic[T]):
    """Runs `work` on its own thread and passes its items to the thread that iterates.

    Python runs no signal handler while the main thread is inside a C call, so long calls are made here. `work` receives
    a function that puts items, and an event that asks it to stop. Its exception is raised in the iterating thread. The
    end of the `with` block joins the thread, unless llama.cpp blocks it forever: see duo.llama.lifeline.
    """

    def __init__(self, work: Callable[[Callable[[T], None], threading.Event], None], name: str) -> None:
        self.items: InterruptibleQueue[T] = InterruptibleQueue()
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._notifying = lifeline.notifying(self.items.end)

    def __enter__(self) -> Background[T]:
        self._notifying.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if not lifeline.is_lost():
            self._thread.join()
            self._notifying.__exit__(None, None, None)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def stop(self) -> None:
        """Ask the work to stop. From any thread or signal handler."""
        self._stop.set()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._work(self.items.put, self._stop)
        except BaseException as raised:  # raised in the iterating thread
            error = raised
        self.items.end(error)
