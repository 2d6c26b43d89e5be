"""Worker: one job after the other on one thread, which there is only while there are jobs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from duo.llama.lifeline import is_lost


class Worker:
    """Runs jobs in the order in which they came. The lock protects the fields below it.

    A thread that has decoded owns a team of OpenMP threads, which slows down others while it idles: so there is no
    thread while there is no job.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None  # the last one
        self._runs = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job`, which must not raise, after those that wait."""
        with self._lock:
            self._jobs.append(job)
            if not self._runs:
                self._runs = True
                self._thread = threading.Thread(target=self._run, name=self._name)
                self._thread.start()

    def drop(self, job: Callable[[], None]) -> bool:
        """Forget a job that waits. False if it does not."""
        with self._lock:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True

    def join(self) -> None:
        """Wait until there is no job, unless llama.cpp holds the thread for ever. Not from a job."""
        while not is_lost():
            with self._lock:
                thread, runs = self._thread, self._runs
            if thread is not None:
                thread.join()
            if not runs:
                return

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._runs = False
                    return
                job = self._jobs.popleft()
            job()
