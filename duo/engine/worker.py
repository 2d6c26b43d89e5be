"""Worker: runs jobs in order on one thread, which exists only while there are jobs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from duo.llama.lifeline import is_lost

_LINGER_S = 0.05  # wait for the next job: consecutive requests share the thread, and the memory that it has freed


class Worker:
    """Runs jobs in order. The condition's lock protects the fields below it.

    A thread that has decoded owns a team of OpenMP threads, which slows down others while it idles. So the thread ends
    soon after the last job.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition(threading.Lock())
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None  # the last one
        self._runs = self._joins = False

    def submit(self, job: Callable[[], None]) -> None:
        """Add `job`, which must not raise, to the queue. What start() of a thread raises, such as Ctrl-C, undoes it."""
        with self._changed:
            self._jobs.append(job)
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
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            return True

    def join(self) -> None:
        """Wait until all jobs are done, unless llama.cpp blocks the thread forever. Not to be called from a job."""
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
                if self._thread is not threading.current_thread():
                    return
                self._changed.wait_for(lambda: self._jobs or self._joins, _LINGER_S)
                if not self._jobs:
                    self._runs = False
                    return
                job = self._jobs.popleft()
            job()
