"""Scheduler: one generation at a time, the others in a queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from duo.engine.slot import Slot, Task
from duo.errors import DuoError, UsageError
from duo.link.backs import Backs, Brief
from duo.spec.types import Step

log = logging.getLogger("duo.server")

STOPPING = "the server is stopping"
LOADING = "the model is still loading"


class Busy(DuoError):
    """The queue is full, or the server is loading or stopping."""


class Job:
    """A task in the queue. `put` is told every Step, then None at the end or what it failed of; on any thread."""

    def __init__(self, task: Task, put: Callable[[Step | Exception | None], None]) -> None:
        self.task = task
        self.put = put
        self.cancelled = threading.Event()


class Scheduler:
    """Runs jobs on the thread that calls run(). The lock protects the fields below it."""

    def __init__(self, n_queue: int, backs: Backs) -> None:
        """At most `n_queue` jobs wait."""
        self._n_queue = n_queue
        self._backs = backs
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._slot: Slot | None = None
        self._stopped = False

    # The server's side

    @property
    def ready(self) -> bool:
        """Whether the model is loaded."""
        with self._changed:
            return self._slot is not None and not self._stopped

    @property
    def why_busy(self) -> str:
        """Why it is not ready."""
        with self._changed:
            return STOPPING if self._stopped else LOADING

    @property
    def n_waiting(self) -> int:
        """Jobs in the queue."""
        with self._changed:
            return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Jobs that are being written: 0 or 1."""
        with self._changed:
            return int(self._running is not None)

    def submit(self, job: Job) -> None:
        """Put a job into the queue. Raises Busy."""
        with self._changed:
            if self._stopped or self._slot is None:
                raise Busy(STOPPING if self._stopped else LOADING)
            if len(self._waiting) >= self._n_queue + (self._running is None):
                raise Busy(f"{self._n_queue} requests are waiting already: try again later, or start it with --queue")
            self._waiting.append(job)
            self._changed.notify_all()

    def cancel(self, job: Job) -> None:
        """Nobody wants this job any more: it ends within one decode."""
        with self._changed:
            job.cancelled.set()
            if job in self._waiting:
                self._waiting.remove(job)
            elif job is self._running and self._slot is not None:
                self._slot.interrupt()

    def stop(self) -> None:
        """End all jobs, and run() with them. From any thread or signal handler."""
        # A handler must not wait for the lock.
        threading.Thread(target=self.fail, args=(Busy(STOPPING),), name="duo-stop").start()

    def fail(self, error: DuoError) -> None:
        """End all jobs with this error, and run() with them, if it can end."""
        with self._changed:
            self._stopped = True
            rest = [*self._waiting, *filter(None, [self._running])]
            self._waiting.clear()
            self._changed.notify_all()
        for job in rest:
            job.put(error)
            self.cancel(job)

    # The target's side

    def load(self, slot: Slot) -> None:
        """From now on jobs are taken."""
        with self._changed:
            self._slot = slot

    def run(self, slot: Slot, watch: Callable[[Step | Task], None]) -> None:
        """Work until stop(). `watch` is told every step of every text, and the task when it is done."""
        while (job := self._next()) is not None:
            self._run(slot, job, watch)

    def _next(self) -> Job | None:
        with self._changed:
            self._running = None
            self._changed.wait_for(lambda: self._waiting or self._stopped)
            if self._stopped:
                return None
            self._running = self._waiting.popleft()
            return self._running

    def _run(self, slot: Slot, job: Job, watch: Callable[[Step | Task], None]) -> None:
        def put(step: Step) -> None:
            job.put(step)
            watch(step)

        task = job.task
        outcome: Exception | None = None
        helpers = self._backs.help_with(Brief(task.sampling, slot.banned(task.stop)))
        try:
            slot.write(task, put, job.cancelled, helpers)
        except UsageError as error:
            outcome = error
        except Exception as error:  # whatever it is, the next request may work
            log.error("a generation failed: %s", error)
            outcome = error
        watch(task)
        job.put(outcome)
