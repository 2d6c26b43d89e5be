"""How many cores the decodes use beside other programs, and the processor time that these use.

The threads that compute a decode wait for each other hundreds of times in it. If one of them has to wait for a core,
all do, and a decode may take fifty times as long. One thread fewer costs little.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from duo.engine.cores import allowed_cores, cpu_quota, usable_cores

log = logging.getLogger("duo.engine")

_STAT, _LOADAVG = Path("/proc/stat"), Path("/proc/loadavg")
_TICK_S = 0.01  # resolution of the times in it
_IDLE = (3, 4)  # idle, iowait
_N_FIELDS = 8  # up to steal; those of virtual machines are counted in the first two already
_TOLERATED = 0.25  # cores that other programs may use without any to spare; an idle system uses less
_SPARED = 0.25  # and for each processor that the decodes do not use: it may be half of a core that they do use
_N_LOOKS, _LOOK_S = 4, 0.002  # at the threads that want to compute, and the seconds between two looks
_READ_EVERY_S = 0.2  # the resolution of the system's times is 0.01 s
_STALE_S = 1.0
_ENOUGH = 0.1  # core-seconds that others used of those that the decodes need, after which these use fewer
_QUIET_S = 0.4  # without them, after which the decodes use more
_MORE = 0.25  # cores that others must use in addition before fewer are tried again
_SLOWER = 1.5  # times the usual time takes a decode that was disturbed
_SLOW = 3  # such decodes in a row, after which fewer cores are tried
_TRIAL = 6  # decodes that are compared
_REST, _MAX_REST = 32, 256  # decodes until more cores are tried; each trial in vain doubles it


@dataclass(frozen=True, slots=True)
class CpuTimes:
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
    """Processors that other programs used from then until now, on average. What the resolution hides is not counted.

    0 where the system counts no processor time: a load average contains this process, and the past minute.
    """
    until = until or cpu_times()
    if since.total_s is None or until.total_s is None:
        return 0.0
    hidden_s = _TICK_S * math.sqrt(2 * len(allowed_cores()))
    used_s = until.total_s - since.total_s - (until.own_s - since.own_s)
    return max(0.0, used_s - hidden_s) / max(until.now - since.now, _TICK_S)


def is_busy(n_used: float, n_threads: int) -> bool:
    """Whether other programs that use `n_used` processors slow down decodes on `n_threads`."""
    return n_used > tolerated_use(n_threads)


def tolerated_use(n_threads: int) -> float:
    """Processors that other programs may use without slowing down decodes on `n_threads`."""
    return _TOLERATED + _SPARED * max(0, len(allowed_cores()) - n_threads)


def _children_s() -> float:
    """Seconds of processor time of the children that run, such as a draft's."""
    ticks = 0
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError, ValueError, IndexError):  # it ends just now
            for child in path.read_text(encoding="ascii").split():
                fields = Path(f"/proc/{child}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
                ticks += sum(map(int, fields.split()[11:13]))
    return _TICK_S * ticks


def _busy_s() -> float | None:
    """Seconds that the processors which this process may use were busy; None if the system does not tell."""
    names = {f"cpu{cpu}" for cpu in allowed_cores()}
    try:
        lines = [line.split() for line in _STAT.read_text(encoding="ascii").splitlines()]
        ticks = [list(map(int, line[1 : 1 + _N_FIELDS])) for line in lines if line and line[0] in names]
    except (OSError, ValueError):
        return None
    if len(ticks) < len(names):
        return None
    return _TICK_S * sum(n for line in ticks for i, n in enumerate(line) if i not in _IDLE)


def waiting_threads() -> int | None:
    """Threads of other programs that want to compute right now; None if that is unknown.

    One that computes for a moment does not count.
    """
    if len(allowed_cores()) < (os.cpu_count() or 1) or cpu_quota() is not None:
        return None  # the system counts those on all processors
    least: int | None = None
    for _ in range(_N_LOOKS):
        try:
            running = int(_LOADAVG.read_text(encoding="ascii").split()[3].partition("/")[0])
        except (OSError, ValueError, IndexError):
            return None
        least = min(running - 1, least if least is not None else running)  # without this one
        if least <= 0:
            return 0
        time.sleep(_LOOK_S)
    return least


class CoresInUse:
    """Measures what other programs use, and limits the threads of the decodes to the other cores.

    The thread that decodes calls it, between two decodes.
    """

    def __init__(
        self,
        *,
        follows: bool = True,
        n_cores: int | None = None,
        times: Callable[[], CpuTimes] = cpu_times,
        n_waiting: Callable[[], int | None] = waiting_threads,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`follows`: whether to limit the threads. If not, `fewest` says what the limit would have been."""
        self.n_cores = self.fewest = n_cores or usable_cores()  # `fewest`: that other programs have left so far
        self._free = FreeCores(self.n_cores, tolerated_use(self.n_cores))
        self._follows = follows
        self._times, self._n_waiting, self._clock = times, n_waiting, clock
        self._is_shared = cpu_quota() is None  # under a quota, others have their own share of the cores
        self._since: CpuTimes | None = None  # the last reading
        self._n_noted = self.n_cores

    @property
    def limit(self) -> int:
        """The most threads that may compute at once: see within(). 0: as many as there are."""
        return self._free.n if self._follows and self._free.n < self.n_cores else 0

    def begin(self) -> None:
        """A text begins. After a pause, its first decode already needs the right number of threads."""
        now = self._times()
        if self._since is not None and now.now - self._since.now < _STALE_S:
            return
        if now.total_s is not None and (n_waiting := self._n_waiting()) is not None:
            self._free.begin(n_waiting)
            self._note()
        elif self._since is not None:
            self._read(self._since, now)
        self._since = now

    def decoded(self, n_tokens: int, seconds: float) -> None:
        """The target decoded a batch of `n_tokens`."""
        if self._follows:
            self._free.decoded(n_tokens, seconds)
        if self._since is not None and self._clock() - self._since.now >= _READ_EVERY_S:
            now = self._times()
            self._read(self._since, now)
            self._since = now
        self._note()

    def _read(self, since: CpuTimes, now: CpuTimes) -> None:
        if self._is_shared and since.total_s is not None and now.total_s is not None:
            self._free.used(other_cpu_use(since, now), now.now - since.now)

    def _note(self) -> None:
        n = self._free.n
        if n != self._n_noted:
            log.debug("other programs leave %d of %d cores", n, self.n_cores)
            self._n_noted, self.fewest = n, min(n, self.fewest)


class FreeCores:
    """Uses fewer cores while others compute, and all again afterwards.

    On systems that tell the load (used(), begin()): the cores that others leave, at once. If others use so little that
    it takes a while to be sure, the times of some decodes decide whether fewer cores are faster. On other systems: half
    of the cores are tried when decodes become slow, and one more now and then; their times decide.
    """

    def __init__(self, n_cores: int, tolerated: float) -> None:
        """There are `n_cores`; others that use at most `tolerated` of them disturb nothing."""
        self._n_cores = n_cores
        self._tolerated = tolerated
        self.n = n_cores  # to use now
        self._is_told = False  # whether the system tells the load
        self._n_others = 0.0  # the load
        self._excess = 0.0  # core-seconds that others used of those that the decodes need; negative: seconds of less
        self._endured = 0.0  # the load beside which fewer cores were slower
        self._times: dict[int, float] = {}  # of recent decodes on these cores, by tokens
        self._usual: dict[tuple[int, int], float] = {}  # undisturbed, by cores and tokens
        self._n_decodes = self._n_slow = 0  # since the last trial; that were disturbed, in a row
        self._rest = 0  # decodes until the next trial, after one in vain
        self._before: tuple[int, dict[int, float]] | None = None  # in a trial: the other number, and times with it
        self._trial = (0, 0.0, 0.0)  # decodes, their seconds, and seconds before

    def begin(self, n_waiting: int) -> None:
        """`n_waiting` threads of other programs want to compute right now."""
        self._is_told = True
        self._use(self._left(n_waiting))

    def used(self, n_others: float, seconds: float) -> None:
        """Others used `n_others` cores in the last `seconds`."""
        self._is_told, self._n_others = True, n_others
        left = self._left(n_others)
        if left > self.n:
            self._excess = min(self._excess, 0.0) - seconds
            if self._excess <= -_QUIET_S:
                self._use(left)
        elif left < self.n and n_others > self._endured:
            if self._excess <= 0:  # the load began during these decodes
                self._excess = 0.0
                self._times.clear()
            self._excess += (n_others - self._tolerated - (self._n_cores - self.n)) * seconds
            if self._excess >= _ENOUGH:
                self._try(left)
        else:
            self._excess = 0.0
            if left == self._n_cores:
                self._endured = 0.0

    def decoded(self, n_tokens: int, seconds: float) -> None:
        """A batch of `n_tokens` was decoded."""
        self._times[n_tokens] = (self._times.get(n_tokens, seconds) + seconds) / 2
        self._n_decodes += 1
        if self._before is not None:
            self._compare(*self._before, n_tokens, seconds)
        elif not self._is_told:
            self._judge(n_tokens, seconds)

    def _compare(self, was: int, before: dict[int, float], n_tokens: int, seconds: float) -> None:
        """Return to `was` cores if that is faster."""
        if n_tokens not in before:
            return
        n, now_s, before_s = self._trial
        n, now_s, before_s = self._trial = n + 1, now_s + seconds, before_s + before[n_tokens]
        if n < _TRIAL and now_s < _TRIAL * before_s / n:
            return
        if now_s < before_s:
            self._before, self._rest = None, 0
            if self.n > was:  # perhaps there are even more
                self._n_decodes = _REST
        else:
            self._rest = min(max(_REST, 2 * self._rest), _MAX_REST)
            self._endured = self._n_others + _MORE
            self._use(was)

    def _judge(self, n_tokens: int, seconds: float) -> None:
        """Try fewer cores if decodes are slow, and more after a while."""
        usual = self._usual.get((self.n, n_tokens))
        if usual is None:  # at most
            usual = self._usual.get((self._n_cores, n_tokens), seconds) * self._n_cores / self.n
        self._n_slow = self._n_slow + 1 if seconds > _SLOWER * usual else 0
        if not self._n_slow:
            self._usual[self.n, n_tokens] = usual + (seconds - usual) / 8
        if self._n_slow >= _SLOW and self.n > 1 and self._n_decodes >= self._rest:
            self._try(self.n // 2)
        elif self.n < self._n_cores and self._n_decodes >= max(_REST, self._rest):
            self._try(self.n + 1)

    def _left(self, n_others: float) -> int:
        """The cores that others leave to the decodes."""
        return min(max(1, self._n_cores - math.ceil(n_others - self._tolerated)), self._n_cores)

    def _try(self, n: int) -> None:
        """Use `n` cores, and compare them with those now if there are times."""
        before = self.n, self._times
        self._use(n)
        if before[1]:
            self._before = before

    def _use(self, n: int) -> None:
        self.n, self._times, self._before, self._trial = n, {}, None, (0, 0.0, 0.0)
        self._excess, self._n_decodes, self._n_slow = 0.0, 0, 0
