"""Worker: one job after the other on one thread, which there is only while there are jobs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from duo.llama.lifeline import is_lost

_LINGER_S = 0.05  # for the next job: requests that follow each other share the thread, and the memory that it has freed


class Worker:
    """Runs jobs in the order in which they came. The condition's lock protects the fields below it.

    A thread that has decoded owns a team of OpenMP threads, which slows down others while it idles: so there is no
    thread while there is no job, but for a moment.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition(threading.Lock())
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None  # the last one
        self._runs = self._joins = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job`, which must not raise, after those that wait."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
            if not self._runs:
                self._runs = True
                self._thread = threading.Thread(target=self._run, name=self._name)
                self._thread.start()

    def drop(self, job: Callable[[], None]) -> bool:
        """Forget a job that waits. False if it does not."""
        with self._changed:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True

    def join(self) -> None:
        """Wait until there is no job, unless llama.cpp holds the thread for ever. Not from a job."""
        while not is_lost():
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
                self._changed.wait_for(lambda: self._jobs or self._joins, _LINGER_S)
                if not self._jobs:
                    self._runs = False
                    return
                job = self._jobs.popleft()
            job()
