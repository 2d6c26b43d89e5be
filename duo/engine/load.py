"""Load: the processor time that other programs use. Decodes that share the cores with them take longer."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from duo.engine.cores import allowed_cores, cpu_quota

_STAT, _LOADAVG = Path("/proc/stat"), Path("/proc/loadavg")
_TICK_S = 0.01  # resolution of the times in it
_IDLE = (3, 4)  # idle, iowait
_N_FIELDS = 8  # up to steal; those of virtual machines are counted in the first two already
_TOLERATED = 0.25  # cores that other programs may use without any to spare; an idle system uses less
_SPARED = 0.25  # and for each processor that the decodes do not use: it may be half of a core that they do use
_N_LOOKS, _LOOK_S = 4, 0.002  # at the threads that want to compute, and the seconds between two looks


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds of processor time so far, on the processors that this process may use."""

    now: float
    total_s: float | None  # None: the system does not count them
    own_s: float  # of this process and its children


def moment() -> Moment:
    """The times until now."""
    ended = os.times()
    own_s = time.process_time() + ended.children_user + ended.children_system + _children_s()
    return Moment(time.monotonic(), _busy_s(), own_s)


def others(since: Moment, until: Moment | None = None) -> float:
    """Processors that other programs used from then until now, on average. What the resolution hides is not counted.

    0 where the system counts no processor time: a load average contains this process, and the past minute.
    """
    until = until or moment()
    if since.total_s is None or until.total_s is None:
        return 0.0
    hidden_s = _TICK_S * math.sqrt(2 * len(allowed_cores()))
    used_s = until.total_s - since.total_s - (until.own_s - since.own_s)
    return max(0.0, used_s - hidden_s) / max(until.now - since.now, _TICK_S)


def is_busy(n_others: float, n_threads: int) -> bool:
    """Whether other programs that use `n_others` processors slow down decodes on `n_threads`."""
    return n_others > tolerated(n_threads)


def tolerated(n_threads: int) -> float:
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


def waiting() -> int | None:
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
