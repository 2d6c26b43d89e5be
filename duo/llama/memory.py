"""How much memory there is, and how much this process has used."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Memory that can still be had without swapping, in bytes; None where the system does not say."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    return min([free, *_cgroup_room()])


def peak_bytes() -> int | None:
    """The most memory that this process has held at once, in bytes; None on Windows."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def trim() -> None:
    """Give freed memory back to the system, where the C library can: glibc keeps what each thread has freed apart."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _cgroup_room() -> list[int]:
    """What a container's limit (control groups, version 2) leaves, as a list of none or one."""
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        fields = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        # Files in the page cache count as used and go when memory is wanted.
        return [limit - used + int(fields["active_file"]) + int(fields["inactive_file"])]
    except (OSError, ValueError, KeyError):  # no limit reads as "max"
        return []
