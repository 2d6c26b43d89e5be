"""A virtual clock: the threads of the engine run one at a time, and time is only what they wait for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from threading import Condition, Lock, Thread
from typing import Any

from duo.engine.recorder import Clock


class _Task:
    """A thread, as the clock sees it."""

    def __init__(self) -> None:
        self.turn = Lock()  # released when it may go on
        self.turn.acquire()
        self.serial = 0  # of what it waits for now
        self.is_told = False  # whether it goes on because it was notified


class Load:
    """Another program, which computes for 0.3 to 1 s of every 2 s: decodes take longer then, on fewer cores."""

    EVERY_S, SLOWER, LEFT = 2.0, 1.8, 0.75  # factor of a decode's time, and share of the cores that are left

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def take(self, start: float, seconds: float) -> tuple[float, float]:
        """When a decode ends that would take `seconds`, and how much less than usual it has computed until then."""
        now, lost_s = start, 0.0
        while seconds > 1e-12:
            n = int(now / self.EVERY_S)
            begin, busy_s = n * self.EVERY_S, random.Random(1000 * self._seed + n).uniform(0.3, 1.0)
            slower, end = (self.SLOWER, begin + busy_s) if now < begin + busy_s else (1.0, begin + self.EVERY_S)
            passed_s = min(seconds * slower, max(end - now, 1e-9))
            now, seconds = now + passed_s, seconds - passed_s / slower
            lost_s += passed_s * (1 - self.LEFT) * (slower > 1)
        return now, lost_s


class VirtualClock(Clock):
    """A discrete-event scheduler of the thread that makes it and those that are started with it.

    A thread goes on until it waits, or ends. Then the one goes on whose moment comes first; time jumps to that moment.
    """

    def __init__(self, load: Load | None = None) -> None:
        self._now = 0.0
        self.load = load
        self.lost_s = 0.0  # in which other programs used the processor
        self._serials = count(1)
        self._moments: list[tuple[float, int, _Task]] = []  # a heap: when each waiting thread goes on
        self.current = _Task()  # the thread that runs
        self.n_threads = 0  # that were started and have not ended

    def now(self) -> float:
        return self._now

    def computed(self) -> float:
        return self._now - self.lost_s

    def condition(self) -> Condition:
        return _VirtualCondition(self)

    def thread(self, run: Callable[[], None], name: str) -> Thread:
        return _VirtualThread(self, run, name)

    def wake(self, task: _Task, seconds: float = 0.0) -> None:
        """Let a waiting thread go on after `seconds`, or when it is told to, whichever is first."""
        serial = next(self._serials)
        task.serial = serial
        if seconds < math.inf:
            heappush(self._moments, (self._now + seconds, serial, task))

    def wait(self, seconds: float) -> bool:
        """Wait until this thread is notified (True) or `seconds` have passed (False)."""
        task = self.current
        task.is_told = False
        self.wake(task, seconds)
        self.go_on(task)
        return task.is_told

    def go_on(self, waiting: _Task | None) -> None:
        """Let the thread go on whose moment comes first, and the one that calls this wait, if it has not ended."""
        while True:
            if not self._moments:
                raise RuntimeError("all threads wait for each other")
            moment, serial, task = heappop(self._moments)
            if task.serial == serial:
                break
        self._now, self.current = max(self._now, moment), task
        if task is not waiting:
            task.turn.release()
            if waiting is not None:
                waiting.turn.acquire()


class _VirtualCondition(Condition):
    """Its lock is never contended: one thread runs at a time."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(Lock())
        self._clock = clock
        self._tasks: list[_Task] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        """See above."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and timeout <= 0:
            return False
        task = self._clock.current
        self._tasks.append(task)
        is_told = self._clock.wait(math.inf if timeout is None else timeout)
        if task in self._tasks:
            self._tasks.remove(task)
        return is_told

    def notify_all(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.is_told = True
            self._clock.wake(task)


class _VirtualThread(Thread):
    """Begins when the one that starts it waits."""

    def __init__(self, clock: VirtualClock, run: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._clock, self._task, self._main = clock, _Task(), run
        self._ended = clock.condition()
        self._has_ended = False

    def start(self) -> None:
        self._clock.n_threads += 1
        self._clock.wake(self._task)
        super().start()

    def run(self) -> None:
        self._task.turn.acquire()
        try:
            self._main()
        finally:
            self._has_ended = True
            self._clock.n_threads -= 1
            self._ended.notify_all()
            self._clock.go_on(None)

    def join(self, timeout: Any = None) -> None:  # noqa: ARG002 - as long as it takes
        while not self._has_ended:
            self._ended.wait()
        super().join()
