"""Work on background threads, and queues for its results."""

import queue
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Generic, TypeVar

from duo.engine.turns import Turns
from duo.llama import lifeline

T = TypeVar("T")
# Polling interval. Waking the consumer takes a core from the decode while the other cores wait for that one: on two
# cores 3.5 % of the time at intervals of 0.02 s (benchmarks/NOTES.md, floor).
PAUSE_S = 0.05
_LINGER_S = 0.05  # wait for the next job: consecutive requests share the thread, and the memory that it has freed


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


class Worker:
    """Runs jobs, in the order of Turns. The condition's lock protects the fields below it.

    A thread that has decoded owns a team of OpenMP threads, which slows down others while it idles. So the thread ends
    soon after the last job.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition(threading.Lock())
        self._jobs = Turns[Callable[[], None]]()
        self._thread: threading.Thread | None = None  # the last one
        self._runs = self._joins = False

    def submit(self, job: Callable[[], None], client: Hashable = None, cost: float = 0.0) -> None:
        """Add `job`, which must not raise, to the queue. What start() of a thread raises, such as Ctrl-C, undoes it."""
        with self._changed:
            self._jobs.add(job, client, cost)
            self._changed.notify_all()
            if not self._runs:
                thread, before = threading.Thread(target=self._run, name=self._name), self._thread
                self._runs, self._thread = True, thread
                try:
                    thread.start()
                except BaseException:
                    self._runs, self._thread = False, before  # if it has started after all, it ends at once
                    self._jobs.remove(job)
                    raise

    def drop(self, job: Callable[[], None]) -> bool:
        """Remove a job from the queue. False if it is not there."""
        with self._changed:
            return self._jobs.remove(job)

    @property
    def is_wanted(self) -> bool:
        """Whether jobs wait. From any thread."""
        return len(self._jobs) > 0

    def join(self) -> None:
        """Wait until all jobs are done, unless llama.cpp blocks the thread forever. Not to be called from a job."""
        while not lifeline.is_lost():
            with self._changed:
                thread, runs, self._joins = self._thread, self._runs, True
                self._changed.notify_all()
            if thread is not None:
                thread.join()
            if not runs:
                return

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._thread is not threading.current_thread():
                    return
                self._changed.wait_for(lambda: self._jobs or self._joins, _LINGER_S)
                if not self._jobs:
                    self._runs = False
                    return
                job = self._jobs.take()
            job()
