"""Clock: the time, and what waits for it. Benchmarks replace it with a virtual one."""

import time
from collections.abc import Callable
from threading import Condition, Lock, Thread


class Clock:
    """The clock of one generation. All that its threads wait for they wait for through it."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.perf_counter()

    def condition(self) -> Condition:
        """A condition with a lock of its own."""
        return Condition(Lock())

    def thread(self, run: Callable[[], None], name: str) -> Thread:
        """A thread, not started yet."""
        return Thread(target=run, name=name)
