"""Memory: what is available, and what this process has used."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Memory available without swapping, in bytes; None where the system does not report it."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    return min([free, *_cgroup_room()])


def peak_bytes() -> int | None:
    """Peak resident memory of this process in bytes; None on Windows."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def trim() -> None:
    """Return freed memory to the system, with glibc: it keeps an arena per thread."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _cgroup_room() -> list[int]:
    """Memory left under a container's limit (cgroup v2), as a list of one; empty without a limit."""
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        fields = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        # The page cache counts as used, but is reclaimable.
        return [limit - used + int(fields["active_file"]) + int(fields["inactive_file"])]
    except (OSError, ValueError, KeyError):  # no limit reads as "max"
        return []
