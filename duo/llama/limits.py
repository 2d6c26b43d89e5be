"""Limits: the memory and the CPUs that this process may use, and what is said if memory is lacking.

The limits of a container, or of a service, are those of its control groups, versions 1 and 2. Each level counts, from
the group of the process to the root of what is mounted.
"""

import ctypes
import functools
import math
import os
import re
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from duo.errors import MemoryLimitError, ModelError

_SHORTAGE = re.compile("(cannot|could not|failed to|unable to) allocate|insufficient memory|out of memory|bad_alloc"
                       "|mem_buffer != NULL", re.IGNORECASE)  # fmt: skip
_ROOT = Path("/")
_GROUP = re.compile(r"^\d+:([^:\n]*):(.*)$", re.MULTILINE)  # cgroups(7)
_MOUNT = re.compile(r"(?:\S+ ){3}(\S+) (\S+) .*? - cgroup(2?) \S+ (\S+)")  # proc_pid_mountinfo(5)
_NONE = 1 << 60  # version 1 has no word for memory without a limit, but a large number


def available_bytes() -> int:
    """Memory available without swapping, in bytes, within the limits of a container or service and of `ulimit -v`."""
    free: int = psutil.virtual_memory().available
    if (left := memory_left()) is not None:
        free = min(free, int(left.value))
    return int(max(0, min(free, ulimit_bytes() - psutil.Process().memory_info().vms)))


def ulimit_bytes() -> float:
    """What `ulimit -v` lets this process have in all."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if most == resource.RLIM_INFINITY else most


def of_size(n_bytes: float) -> str:
    """This many bytes, for people."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MiB"


def shortage(log: str, needs: str) -> str:
    """A message that memory is lacking, and what needed it, if llama.cpp's `log` says so; else empty."""
    line = re.sub(".*error loading model[^:]*: ", "", next(filter(_SHORTAGE.search, log.splitlines()), ""))
    limit = " within the limit of this process" if ulimit_bytes() < math.inf else ""
    free = f"{of_size(available_bytes())} of this machine's memory are available{limit}"
    return line and f"out of memory: {needs}, and {free} ({line})"


def failure(name: object, log: str, needs: str, otherwise: str) -> ModelError:
    """The error of `name`, a file: see shortage(); or else `otherwise`."""
    short = shortage(log, needs)
    return MemoryLimitError(f"{name}: {short}") if short else ModelError(f"{name}: {otherwise}")


def peak_bytes() -> int:
    """Peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def trim() -> None:
    """Return freed memory to the system, with glibc: it keeps an arena per thread."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def uses_host_memory() -> bool:
    """Whether devices may take the host's memory when their own is full, because the user said so."""
    return any(os.environ.get(name) for name in ("GGML_VK_ALLOW_SYSMEM_FALLBACK", "GGML_CUDA_ENABLE_UNIFIED_MEMORY"))


# Control groups


@dataclass(frozen=True, slots=True)
class Limit:
    """The least that any level allows, in CPUs or bytes, and the folder of that level."""

    value: float
    folder: str


def cpu_limit(root: Path = _ROOT) -> Limit | None:
    """CPUs; None without a limit. `root`: of the files of the system."""
    return _least("cpu", _cpus, root)


def memory_limit(root: Path = _ROOT) -> Limit | None:
    """Bytes; None without a limit."""
    return _least("memory", _most_bytes, root)


def memory_left(root: Path = _ROOT) -> Limit | None:
    """Bytes that are not used yet of a limit, or used for the page cache, which is reclaimable."""
    return _least("memory", _free_bytes, root)


def _least(controller: str, measure: Callable[[Path, bool], float | None], root: Path) -> Limit | None:
    found = []
    for folder, is_v2 in _levels(controller, root):
        with suppress(OSError, ValueError, KeyError, ZeroDivisionError):  # "max": no limit
            if (value := measure(folder, is_v2)) is not None:
                found.append(Limit(value, str(folder)))
    return min(found, key=lambda limit: limit.value, default=None)


def _cpus(folder: Path, is_v2: bool) -> float | None:
    names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    quota, period = " ".join(_read(folder / name) for name in names).split()
    return int(quota) / int(period) if int(quota) > 0 else None


def _most_bytes(folder: Path, is_v2: bool) -> int | None:
    names = ("memory.max", "memory.high") if is_v2 else ("memory.limit_in_bytes",)
    limits = [int(text) for text in (_read(folder / name).strip() for name in names) if text != "max"]
    return min((limit for limit in limits if limit < _NONE), default=None)


def _free_bytes(folder: Path, is_v2: bool) -> int | None:
    if (limit := _most_bytes(folder, is_v2)) is None:
        return None
    used = int(_read(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes")))
    stat = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
    names = ("active_file", "inactive_file") if is_v2 else ("total_active_file", "total_inactive_file")
    return max(0, limit - used + sum(int(stat[name]) for name in names))


@functools.cache
def _levels(controller: str, root: Path) -> tuple[tuple[Path, bool], ...]:
    """The folders of the process's group and of those above it, each with whether it is of version 2."""
    try:
        groups, mounts = (_read(root / "proc/self" / name) for name in ("cgroup", "mountinfo"))
    except OSError:  # not Linux
        return ()
    own = {name: path for names, path in _GROUP.findall(groups) for name in names.split(",")}
    name = controller if controller in own else ""  # version 2 has no name, and the controllers that 1 does not have
    found: dict[bool, list[tuple[Path, bool]]] = {True: [], False: []}
    for top, point, is_v2, options in _MOUNT.findall(mounts):
        if name in own and (is_v2 if not name else not is_v2 and name in options.split(",")):
            path = PurePosixPath(own[name])
            is_below = path.is_relative_to(top) and ".." not in path.parts
            below = path.relative_to(top) if is_below else PurePosixPath()  # else the group cannot be seen from here
            mount = root / re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), point).lstrip("/")
            found[is_below] += [(mount / part, not name) for part in (below, *below.parents)]
    return tuple(found[True] or found[False])


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape")
