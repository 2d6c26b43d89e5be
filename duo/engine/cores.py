"""The cores that this process may use, and how the models share them."""

from __future__ import annotations

import math
import os
from pathlib import Path

from duo.config import MAX_THREADS
from duo.errors import UsageError

_MAX_DIGITS = 40  # of a range; Python refuses to convert thousands
_CPUS = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Number of physical cores within the affinity mask and the container's CPU quota, 1 to MAX_THREADS."""
    n = min(MAX_THREADS, len({_siblings(cpu) for cpu in allowed_cores()}))
    quota = cpu_quota()
    return max(1, n if quota is None else min(n, math.floor(quota)))


def split_cores(n_target: int | None, n_draft: int | None, cores: int) -> tuple[int, int]:
    """Threads for target and draft, together `cores` unless the user specified other numbers.

    Two OpenMP teams that together exceed the cores slow each other down.
    """
    if n_target is None and n_draft is None:
        n_draft = max(1, cores // 4)
    if n_draft is None:
        return n_target or 1, max(1, cores - (n_target or 1))
    if n_target is None:
        return max(1, cores - n_draft), n_draft
    return n_target, n_draft


def parse_range(text: str, parameter: str = "cpu_range") -> frozenset[int]:
    """The cores in `lo-hi` (inclusive), as in llama.cpp's --cpu-range. Raises UsageError, which names `parameter`."""
    low, dash, high = text.partition("-")
    if not dash or not (low + high).isdecimal() or len(low + high) > _MAX_DIGITS:
        raise UsageError(f"{parameter}: a range of cores is written lo-hi, for example 0-3, not {text!r}", parameter)
    allowed = allowed_cores()
    first, last = int(low or 0), int(high) if high else max(allowed)
    cores = frozenset(range(first, min(last, max(allowed) + 1) + 1))
    if not cores or not cores <= allowed:
        which = ", ".join(map(str, sorted(allowed)))
        raise UsageError(f"{parameter}: cores {text}: this process may use {which}", parameter)
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


def cpu_quota() -> float | None:
    """The container's CPU quota (control groups version 2), in CPUs; None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # "max": no limit
        return None
