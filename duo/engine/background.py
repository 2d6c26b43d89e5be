"""Work on another thread, whose results the calling thread iterates over."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from duo.errors import DeviceError
from duo.llama import lifeline

T = TypeVar("T")
PAUSE_S = 0.02  # between two looks: waking for every item would take a core from the work for a moment


class Items(Generic[T]):
    """Carries items from a thread that works to one that iterates, which a signal can interrupt while it waits."""

    def __init__(self, on_stall: Callable[[], None] = lambda: None, stall_s: float = 30.0) -> None:
        """`on_stall` is called on the iterating thread whenever nothing has come for `stall_s` seconds."""
        self.on_stall = on_stall
        self.stall_s = stall_s
        self._items: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._done = threading.Event()
        self._error: BaseException | None = None

    def put(self, item: T) -> None:
        """The next one."""
        self._items.put(item)

    def end(self, error: BaseException | None = None) -> None:
        """There are no more. `error` is raised where they are iterated over; only the first one counts."""
        self._error = self._error or error
        self._done.set()
        self._items.put(None)

    @property
    def n_waiting(self) -> int:
        """Items that were put and not yet taken."""
        return self._items.qsize()

    def __iter__(self) -> Iterator[T]:
        """The items, until there are no more."""
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
                self._done.wait(PAUSE_S)
        if self._error is not None:
            raise self._error


class Background(Generic[T]):
    """Runs `work` on a thread of its own and hands what it puts out to the thread that iterates.

    No Python signal handler runs while the main thread sits inside a C call, so the long calls are made here. `work`
    is given `put`, for items, and a flag that asks it to stop. Its exception reaches the iterating thread. The thread
    has ended when the block is left, unless llama.cpp holds it for ever: see duo.llama.lifeline.
    """

    def __init__(
        self,
        work: Callable[[Callable[[T], None], threading.Event], None],
        name: str,
        on_stall: Callable[[], None] = lambda: None,
        stall_s: float = 30.0,
    ) -> None:
        """See Items for `on_stall` and `stall_s`."""
        self._work = work
        self._items: Items[T] = Items(on_stall, stall_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._told = lifeline.told(self._lose)

    def __enter__(self) -> Background[T]:
        """Start the thread."""
        self._told.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ask the work to stop and wait for it."""
        self._stop.set()
        if not lifeline.is_lost():
            self._thread.join()
            self._told.__exit__(None, None, None)

    def __iter__(self) -> Iterator[T]:
        """What the work puts out, until it returns. Raises what the work raised."""
        return iter(self._items)

    @property
    def n_waiting(self) -> int:
        """What was put out and not yet taken."""
        return self._items.n_waiting

    def stop(self) -> None:
        """Ask the work to stop, from any thread or signal handler."""
        self._stop.set()

    def _lose(self, error: DeviceError) -> None:
        """The work will not go on: let the iterating thread take what there is, and raise `error`."""
        self._items.end(error)

    def _run(self) -> None:
        try:
            self._work(self._items.put, self._stop)
        except BaseException as error:  # carried to the iterating thread
            self._items.end(error)
        else:
            self._items.end()
