"""What a machine is."""

from __future__ import annotations

import os
from typing import Any

from duo.diagnose.host import read_host
from duo.engine.cores import usable_cores


def hardware() -> dict[str, Any]:
    """The processor, its cores and the memory in bytes."""
    host = read_host()
    memory = host.memory_total
    return {"cpu": host.cpu, "cores": os.cpu_count(), "usable_cores": usable_cores(), "memory_bytes": memory}
