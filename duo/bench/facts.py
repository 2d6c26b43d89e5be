"""The environment that results record: hardware and versions."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from typing import Any

from duo.diagnose.host import read_host
from duo.engine.cores import usable_cores
from duo.llama import library
from duo.llama.build import versions
from duo.llama.devices import list_devices
from duo.llama.model import Model


def circumstances() -> dict[str, Any]:
    """Date, versions, hardware and devices; memory in bytes."""
    host = read_host()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions() | {"python": platform.python_version(), "system": platform.platform()},
        "hardware": {"cpu": host.cpu, "cores": os.cpu_count(), "usable_cores": usable_cores(),
                     "memory_bytes": host.memory_total},
        "devices": [{"name": d.name, "description": d.description, "kind": d.kind} for d in list_devices()],
        "llama_cpp": library.system_info(),
    }  # fmt: skip


def model_facts(model: Model) -> dict[str, Any]:
    """Name, size in bytes and quantisation of a model."""
    names = {"name": model.path.name, "description": model.description}
    return names | {"bytes": model.n_bytes, "quantisation": model.quantisation}
