"""What a result has to name: models, hardware, versions and options."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from duo.bench.contestant import Interrupted
from duo.config import ModelConfig
from duo.diagnose.host import read_host
from duo.engine.cores import usable_cores
from duo.llama import library
from duo.llama.devices import list_devices
from duo.llama.model import Model

_CHUNK = 1 << 22


def circumstances() -> dict[str, Any]:
    """When, with what versions and on what it is measured, and how busy the machine was before."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": library.versions() | {"python": platform.python_version(), "system": platform.platform()},
        "hardware": hardware(),
        "devices": [{"name": d.name, "description": d.description, "kind": d.kind} for d in list_devices()],
        "llama_cpp": library.system_info(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def hardware() -> dict[str, Any]:
    """The processor, its cores and the memory in bytes."""
    host, cores = read_host(), {"cores": os.cpu_count(), "usable_cores": usable_cores()}
    return {"cpu": host.cpu, **cores, "memory_bytes": host.memory_total}


def model_facts(model: Model, sums: dict[str, str]) -> dict[str, Any]:
    """A model by name, size, quantisation and checksums; `sums` is what checksums() gave for it."""
    return {
        "name": model.path.name,
        "description": model.description,
        "bytes": model.n_bytes,
        "quantisation": model.quantisation,
        "sha256": sums,
    }


def checksums(config: ModelConfig, progress: Callable[[str, float], None], stop: threading.Event) -> dict[str, str]:
    """The SHA-256 of each file of the model. Reading them also leaves them in the page cache.

    Raises Interrupted once `stop` is set, OSError.
    """
    found = {}
    total, done = sum(part.stat().st_size for part in config.shards), 0
    for part in config.shards:
        digest = hashlib.sha256()
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK):
                if stop.is_set():
                    raise Interrupted
                digest.update(chunk)
                done += len(chunk)
                progress(f"reading {part.name}", done / total)
        found[part.name] = digest.hexdigest()
    return found
