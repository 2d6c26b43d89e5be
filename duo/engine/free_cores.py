"""How many cores the decodes use beside other programs, and the processor time that these use.

The threads that compute a decode wait for each other hundreds of times in it. If one of them has to wait for a core,
all do, and a decode may take fifty times as long. One thread fewer costs little.
"""

import logging
import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from duo.engine.cores import allowed_cores, usable_cores
from duo.llama.limits import cpu_limit

log = logging.getLogger("duo.engine")

_TICK_S = 0.01  # resolution of the system's times
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_TOLERATED = 0.25  # cores that other programs may use without any to spare; an idle system uses less
_SPARED = 0.25  # and for each processor that the decodes do not use: it may be half of a core that they do use
_READ_EVERY_S = 0.4  # the resolution of the system's times is 0.01 s; between two decodes, a reading takes 1 ms
_UNSHARED = 0.4  # cores that other programs may use before they are left one more: for less, one thread costs more
_ENOUGH = 0.1  # core-seconds that others used of those that the decodes need, after which these use fewer
_QUIET_S = 0.4  # without them, after which the decodes use more


class CpuTimes(NamedTuple):
    """Seconds of processor time so far, on the processors that this process may use."""

    now: float
    total_s: float | None  # None: the system does not count them
    own_s: float  # of this process and its children


def cpu_times() -> CpuTimes:
    """The times until now."""
    ended = os.times()
    own_s = time.process_time() + ended.children_user + ended.children_system + _children_s()
    return CpuTimes(time.monotonic(), _busy_s(), own_s)


def other_cpu_use(since: CpuTimes, until: CpuTimes | None = None) -> float:
    """Processors that other programs used from then until now, on average; 0 where the system does not tell."""
    until = until or cpu_times()
    if since.total_s is None or until.total_s is None:
        return 0.0
    hidden_s = _TICK_S * math.sqrt(2 * len(allowed_cores()))
    used_s = until.total_s - since.total_s - (until.own_s - since.own_s)
    return max(0.0, used_s - hidden_s) / max(until.now - since.now, _TICK_S)


def is_busy(n_used: float, n_threads: int) -> bool:
    """Whether other programs that use `n_used` processors slow down decodes on `n_threads`."""
    return n_used > _TOLERATED + _SPARED * max(0, len(allowed_cores()) - n_threads)


def _children_s() -> float:
    """Seconds of processor time of the children that run, such as a draft's."""
    seconds = 0.0
    for path in Path("/proc/self/task").glob("*/children"):  # psutil reads the times of all processes to find them
        with suppress(OSError, psutil.Error):  # it ends just now
            seconds += sum(sum(psutil.Process(int(pid)).cpu_times()[:2]) for pid in path.read_text().split())
    return seconds


def _busy_s() -> float | None:
    """Seconds that the processors which this process may use were busy; None if the system does not tell."""
    times, cores = psutil.cpu_times(percpu=True), allowed_cores()
    if len(times) <= max(cores):
        return None
    # The times of virtual machines are counted in the user's already.
    return sum(getattr(times[core], name, 0.0) for core in cores for name in _BUSY)


class CoresInUse:
    """Measures what other programs use, and limits the threads of the decodes to the other cores.

    The thread that decodes calls it, between two decodes. Where the system does not tell what others use, and under a
    quota, with which others have their own share of the cores, there is no limit.
    """

    def __init__(self, *, follows: bool = True) -> None:
        """`follows`: whether to limit the threads. If not, `fewest` says what the limit would have been."""
        self.n_cores = self.fewest = usable_cores()  # `fewest`: that other programs have left so far
        self._follows = follows
        self._since: CpuTimes | None = None  # the last reading
        self._n = self.n_cores  # to use now
        self._excess = 0.0  # core-seconds that others used of those that the decodes need; negative: seconds of less

    @property
    def limit(self) -> int:
        """The most threads that may compute at once: see within(). 0: as many as there are."""
        return self._n if self._follows and self._n < self.n_cores else 0

    def begin(self) -> None:
        """A warm-up or a text begins."""
        self._since = self._since or cpu_times()
        self.decoded()

    def decoded(self) -> bool:
        """The target has decoded a batch. Whether `limit` has changed."""
        since = self._since
        if since is None or time.monotonic() - since.now < _READ_EVERY_S:
            return False
        self._since, before = cpu_times(), self.limit
        if self._since.total_s is not None and cpu_limit() is None:
            self._follow(other_cpu_use(since, self._since), self._since.now - since.now)
        return self.limit != before

    def _follow(self, n_others: float, seconds: float) -> None:
        """Others must use the cores for a while, or leave them, before that changes anything."""
        left = min(max(1, self.n_cores - math.ceil(n_others - _UNSHARED)), self.n_cores)  # to the decodes
        if left > self._n:
            self._excess = min(self._excess, 0.0) - seconds
        elif left < self._n:
            self._excess = max(self._excess, 0.0) + (n_others - _TOLERATED - (self.n_cores - self._n)) * seconds
        else:
            self._excess = 0.0
        if not -_QUIET_S < self._excess < _ENOUGH:
            log.debug("other programs leave %d of %d cores", left, self.n_cores)
            self._n, self._excess, self.fewest = left, 0.0, min(left, self.fewest)
