"""What results record: hardware, versions, devices, models and options."""

import json
import os
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from duo.diagnose.host import read_host
from duo.engine.cores import usable_cores
from duo.engine.model_pair import ModelPair
from duo.llama import library
from duo.llama.build import versions
from duo.llama.devices import list_devices


def circumstances() -> dict[str, object]:
    """Date, versions, hardware and devices; memory in bytes."""
    host = read_host()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions() | {"python": platform.python_version(), "system": platform.platform()},
        "hardware": {"cpu": host.cpu, "cores": os.cpu_count(), "usable_cores": usable_cores(),
                     "memory_bytes": host.memory_total},
        "devices": _devices(),
        "llama_cpp": library.system_info(),
    }  # fmt: skip


def run_facts(slot: ModelPair, options: object) -> dict[str, object]:
    """Where, and with what `options`, a text was generated."""
    return {
        "versions": versions(), "system": library.system_info(), "devices": _devices(), "models": model_facts(slot),
        "threads": slot.threads, "context": slot.n_ctx, "options": options,
    }  # fmt: skip


def _devices() -> list[dict[str, object]]:
    return [
        {"name": each.name, "description": each.description, "kind": each.kind,
         **dict(zip(("memory_free", "memory_total"), each.memory, strict=True))}
        for each in list_devices()
    ]  # fmt: skip


def model_facts(slot: ModelPair) -> dict[str, dict[str, object] | None]:
    """The target and the draft: sizes in bytes, and what is in the files."""
    return {
        role: None if model is None else {
            "path": model.path, "name": model.path.name, "description": model.description, "bytes": model.n_bytes,
            "params": model.n_params, "layers": model.n_layer, "quantisation": model.quantisation,
            "vocabulary": model.n_vocab, "trained_context": model.n_ctx_train,
        }
        for role, model in (("target", slot.target), ("draft", slot.draft_model))
    }  # fmt: skip


def merged(*parts: object) -> dict[str, object]:
    """Dataclasses and dicts (None: nothing) as one JSON object."""
    found: dict[str, object] = {}
    for part in filter(None, parts):
        found |= msgspec.to_builtins(part, enc_hook=str, str_keys=True, order="deterministic")
    return found


def write_json(path: Path, *parts: object) -> None:
    """Write merged() to a file; `-` is standard output. Raises OSError."""
    text = json.dumps(merged(*parts), indent=2) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")
