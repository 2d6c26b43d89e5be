"""The environment that results record: models, hardware and versions."""

from __future__ import annotations

import hashlib
import os
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from duo.bench.contestant import Interrupted
from duo.config import ModelConfig
from duo.diagnose.host import read_host
from duo.engine.cores import allowed_cores, usable_cores
from duo.llama import library
from duo.llama.build import versions
from duo.llama.devices import list_devices
from duo.llama.model import Model

_CHUNK = 1 << 22


def circumstances() -> dict[str, Any]:
    """Date, versions, hardware, devices and the load before the measurement."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions() | {"python": platform.python_version(), "system": platform.platform()},
        "hardware": hardware(),
        "devices": [{"name": d.name, "description": d.description, "kind": d.kind} for d in list_devices()],
        "llama_cpp": library.system_info(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def hardware() -> dict[str, Any]:
    """CPU, cores, the cache levels shared by all usable cores, and memory in bytes."""
    host, cores = read_host(), {"cores": os.cpu_count(), "usable_cores": usable_cores()}
    return {"cpu": host.cpu, **cores, "shared_caches": _shared_caches(), "memory_bytes": host.memory_total}


def _shared_caches() -> list[str]:
    """Such as L3; empty if the system does not list caches."""
    cores, found = allowed_cores(), []
    with suppress(OSError, ValueError):
        for folder in sorted(Path(f"/sys/devices/system/cpu/cpu{min(cores)}/cache").glob("index*")):
            ranges = [
                part.partition("-") for part in (folder / "shared_cpu_list").read_text(encoding="ascii").split(",")
            ]
            if cores <= {cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)}:
                found.append(f"L{(folder / 'level').read_text(encoding='ascii').strip()}")
    return found


def model_facts(model: Model, sums: dict[str, str]) -> dict[str, Any]:
    """Name, size, quantisation and checksums (`sums`) of a model."""
    return {
        "name": model.path.name,
        "description": model.description,
        "bytes": model.n_bytes,
        "quantisation": model.quantisation,
        "sha256": sums,
    }


def checksums(config: ModelConfig, progress: Callable[[str, float], None], stop: threading.Event) -> dict[str, str]:
    """The SHA-256 of each file of the model. This also loads the files into the page cache.

    Raises OSError, or Interrupted once `stop` is set.
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
