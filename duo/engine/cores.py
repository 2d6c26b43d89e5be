"""The cores that this process may use, how many of them other programs leave, and the threads of each model."""

import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from duo.config import MAX_THREADS, EngineConfig, ThreadConfig
from duo.errors import UsageError
from duo.llama.build import CPU
from duo.llama.limits import cpu_limit
from duo.models.profiles import ProfileDocument, kept_threads

log = logging.getLogger("duo.engine")

Places = frozenset[str]
ON_CPU: Places = frozenset((CPU,))
_CPUS = Path("/sys/devices/system/cpu")

_TICK_S = 0.01  # resolution of the system's times
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_TOLERATED = 0.25  # cores that other programs may use without any to spare; an idle system uses less
_SPARED = 0.25  # and for each processor that the decodes do not use: it may be half of a core that they do use
_READ_EVERY_S = 0.4  # the resolution of the system's times is 0.01 s; between two decodes, a reading takes 1 ms
_UNSHARED = 0.4  # cores that other programs may use before they are left one more: for less, one thread costs more
_ENOUGH = 0.1  # core-seconds that others used of those that the decodes need, after which these use fewer
_LOOKS, _LOOK_S = 4, 0.001  # at the threads that want to compute, where a text begins
_QUIET_S = 0.4  # without them, after which the decodes use more


def usable_cores() -> int:
    """Number of physical cores within the affinity mask and the quota of a container or service, 1 to MAX_THREADS."""
    n = min(MAX_THREADS, len({_siblings(cpu) for cpu in allowed_cores()}))
    quota = cpu_limit()
    return max(1, n if quota is None else min(n, math.floor(quota.value)))


def split_cores(n_target: int | None, n_draft: int | None, cores: int) -> tuple[int, int]:
    """Threads for target and draft, together `cores`, unless the user specified others: more slow each other down."""
    if n_draft is None:
        n_draft = max(1, cores // 4 if n_target is None else cores - n_target)
    return n_target or max(1, cores - n_draft), n_draft


def parse_range(text: str, parameter: str = "cpu_range") -> frozenset[int]:
    """The cores in `lo-hi` (inclusive), as in llama.cpp's --cpu-range. Raises UsageError, which names `parameter`."""
    allowed, found = allowed_cores(), re.fullmatch(r"(\d{0,9})-(\d{0,9})", text)
    cores = frozenset[int]()
    if found is not None and text != "-":
        last = min(int(found[2] or max(allowed)), max(allowed) + 1)
        cores = frozenset(range(int(found[1] or 0), last + 1))
    if not cores or not cores <= allowed:
        which = ", ".join(map(str, sorted(allowed)))
        raise UsageError(f"{parameter}: {text!r} is no range lo-hi of the cores of this process, {which}", parameter)
    return cores


def pin(cores: frozenset[int] | None) -> None:
    """Pin the calling thread, and threads that it starts later, to `cores`, if the system supports it."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def allowed_cores() -> frozenset[int]:
    """The logical processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _siblings(cpu: int) -> str:
    """The hardware threads that share a core with `cpu`, as formatted by the system; `cpu` alone if unknown."""
    try:
        return (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)


# Threads


def plan_threads(
    config: EngineConfig, *, drafting: bool, target_on: Places = ON_CPU, draft_on: Places = ON_CPU
) -> ThreadConfig:
    """Threads of both models in each schedule; each model is on its `Model.places`. Raises UsageError."""
    own = parse_range(config.cpu_range) if config.cpu_range else None
    draft_cores = parse_range(config.draft_cpu_range, "draft_cpu_range") if config.draft_cpu_range else None
    cores = usable_cores()
    target = config.n_threads or (min(cores, len(own)) if own else cores)
    # A model on other devices needs one core to submit work to them.
    draft = config.draft_n_threads or (None if CPU in draft_on else 1)
    n_concurrent = None
    if CPU not in target_on and not config.n_threads:
        n_concurrent = 1
    elif (config.n_threads or own) and (target < cores or config.draft_n_threads):
        n_concurrent = target  # one that uses all cores when alone gives some to a concurrent draft
    return ThreadConfig(
        target,
        config.n_threads_batch or target,
        draft=(draft,) if draft else (1, cores) if cores > 1 else (1,),
        concurrent=split_cores(n_concurrent, draft, cores) if drafting else (target, 1),
        cores=own,
        draft_cores=draft_cores or (own and allowed_cores()),
        separate_devices=not target_on & draft_on,
    )


def tuned_threads(threads: ThreadConfig, config: EngineConfig, kept: ProfileDocument) -> ThreadConfig:
    """`threads` with the numbers stored in a profile, unless the user specified any or they are damaged."""
    tuned = kept_threads(kept).get("threads")
    if tuned is None or config.n_threads or config.draft_n_threads:
        return threads
    target, draft, concurrent = tuned["target"], tuned["draft"], tuned["concurrent"]
    if max(target, draft, *concurrent) > usable_cores():
        return threads
    return replace(threads, target=target, draft=(draft,), concurrent=concurrent)


def follows_cores(config: EngineConfig) -> bool:
    """Whether the numbers of threads may follow the free cores: the user has specified neither them nor cores."""
    given = (config.n_threads, config.n_threads_batch, config.draft_n_threads, config.cpu_range, config.draft_cpu_range)
    return not any(given)


def within(threads: ThreadConfig, n_cores: int) -> ThreadConfig:
    """`threads`, of which at most `n_cores` compute at once (0: no limit); beside each other, at least one for each."""
    if not n_cores:
        return threads
    target, draft = threads.concurrent
    if target + draft > n_cores:
        draft = max(1, draft * n_cores // (target + draft))
        target = max(1, n_cores - draft)
    return replace(
        threads,
        target=min(threads.target, n_cores),
        target_batch=min(threads.target_batch, n_cores),
        draft=tuple(sorted({min(n, n_cores) for n in threads.draft})),
        concurrent=(target, draft),
    )


def check_threads(threads: ThreadConfig, *, concurrent: bool) -> None:
    """Warn if more threads than cores would compute at once, `concurrent` a draft too. Raises as require_threads()."""
    require_threads(max(threads.target, threads.target_batch) + (threads.concurrent[1] if concurrent else 0))
    cores = usable_cores()
    asked = max(threads.target, sum(threads.concurrent) if concurrent else 0)
    # A single core is always shared.
    if asked > max(cores, 1 + concurrent):
        log.warning("%d threads on %d cores will slow each other down", asked, cores)


def require_threads(n: int) -> None:
    """Raise UsageError if the system does not let this process start `n` threads: OpenMP would end the process."""
    release, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(n):
            thread = threading.Thread(target=release.wait, name="duo-trial", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:  # can't start new thread
        raise UsageError(
            f"n_threads: {n} threads are needed, and the system lets this process start {len(started)} "
            "(a limit of processes or of memory, of the user or of the container): use a smaller number",
            "n_threads",
        ) from None
    finally:
        release.set()
        for thread in started:
            thread.join()


# What other programs use. The threads that compute a decode wait for each other hundreds of times in it. If one of
# them has to wait for a core, all do, and a decode may take fifty times as long. One thread fewer costs little.


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


def _n_ready(loads: Path = Path("/proc/loadavg")) -> float:
    """Threads of the system that compute or wait for a processor, for some ms, but this one; infinite if unknown."""
    found = math.inf
    for _ in range(_LOOKS):
        try:
            found = min(found, int(loads.read_text(encoding="ascii").split()[3].split("/")[0]) - 1)
        except (OSError, ValueError, IndexError):
            return math.inf
        time.sleep(_LOOK_S)
    return found


class CoresInUse:
    """Measures what other programs use, and limits the threads of the decodes to the other cores.

    The thread that decodes calls it, between two decodes. Where the system does not tell what others use, and under a
    quota, with which others have their own share of the cores, there is no limit.
    """

    def __init__(self, *, follows: bool = True) -> None:
        """`follows`: whether to limit the threads. If not, `fewest` says what the limit would have been."""
        self.n_cores = self.fewest = usable_cores()  # `fewest`: that other programs have left so far
        self._follows, self._has_quota = follows, cpu_limit() is not None
        self._since: CpuTimes | None = None  # the last reading
        self._n = self.n_cores  # to use now
        self._excess = 0.0  # core-seconds that others used of those that the decodes need; negative: seconds of less

    @property
    def limit(self) -> int:
        """The most threads that may compute at once: see within(). 0: as many as there are."""
        return self._n if self._follows and self._n < self.n_cores else 0

    def begin(self) -> None:
        """A warm-up or a text begins. Of what others have used since the last one, only what they still use counts."""
        self._since = self._since or cpu_times()
        self._read(_n_ready)

    def decoded(self) -> bool:
        """The target has decoded a batch. Whether `limit` has changed."""
        return self._read()

    def _read(self, n_ready: Callable[[], float] = lambda: math.inf) -> bool:
        """Measure what others use, at most `n_ready` processors, unless that was just done. Whether `limit` changed."""
        since = self._since
        if since is None or time.monotonic() - since.now < _READ_EVERY_S:
            return False
        self._since, before = cpu_times(), self.limit
        if self._since.total_s is not None and not self._has_quota:
            n_others = other_cpu_use(since, self._since)
            self._follow(min(n_others, n_ready()) if n_others > _UNSHARED else n_others, self._since.now - since.now)
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
