"""What a machine is."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from duo.engine.cores import usable_cores


def hardware() -> dict[str, Any]:
    """The processor, its cores and the memory in bytes."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": _processor(), "cores": os.cpu_count(), "usable_cores": usable_cores(), "memory_bytes": memory}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
