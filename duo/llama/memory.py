"""How much memory there is, and how much this process has used."""

from __future__ import annotations

import sys
from pathlib import Path


def available_bytes() -> int | None:
    """Memory that can still be had without swapping, in bytes; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
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


def _cgroup_room() -> list[int]:
    """What a container's limit leaves, as a list of none or one."""
    base = Path("/sys/fs/cgroup")
    try:
        limit = int((base / "memory.max").read_text(encoding="ascii"))
        return [limit - int((base / "memory.current").read_text(encoding="ascii"))]
    except (OSError, ValueError):  # no limit reads as "max"
        return []
