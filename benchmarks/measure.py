"""Runs one process and says what it cost; reads what a result has to name: models, hardware, versions."""

from __future__ import annotations

import hashlib
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

REPOSITORY = Path(__file__).resolve().parent.parent
KV_BYTES = 2  # F16


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model as a result names it."""

    path: Path
    size: int
    sha256: str
    n_layers: int
    n_kv_heads: int
    head_size: int

    def kv_cache_bytes(self, n_ctx: int) -> int:
        """Keys and values of every layer, in F16."""
        return 2 * self.n_layers * n_ctx * self.n_kv_heads * self.head_size * KV_BYTES

    def as_json(self) -> dict[str, Any]:
        return {"name": self.path.name, "size": self.size, "sha256": self.sha256[:16]}


def read_model(path: Path) -> ModelFile:
    """Read a model file, all of it: that gives the checksum and leaves it in the page cache."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        file.seek(0)
        about = _gguf_metadata(file)
    family = about["general.architecture"]
    heads = int(about[f"{family}.attention.head_count"])
    return ModelFile(
        path,
        path.stat().st_size,
        digest.hexdigest(),
        int(about[f"{family}.block_count"]),
        int(about.get(f"{family}.attention.head_count_kv", heads)),
        int(about.get(f"{family}.attention.key_length", about[f"{family}.embedding_length"] // heads)),
    )


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def _gguf_metadata(file: BinaryIO) -> dict[str, Any]:
    """The key-value pairs at the head of a GGUF file."""
    magic, _, _, n_pairs = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF":
        raise ValueError(f"{file.name} is not a GGUF file")
    return {_gguf_value(file, _STRING): _gguf_value(file, *struct.unpack("<I", file.read(4))) for _ in range(n_pairs)}


def _gguf_value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        (length,) = struct.unpack("<Q", file.read(8))
        return file.read(length).decode("utf-8", "replace")
    if kind == _ARRAY:
        element, length = struct.unpack("<IQ", file.read(12))
        return [_gguf_value(file, element) for _ in range(length)]
    layout = "<" + _SCALARS[kind]
    return struct.unpack(layout, file.read(struct.calcsize(layout)))[0]


def git_commit() -> dict[str, Any]:
    """The commit of the working tree, and whether it was changed since."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    return {"commit": git("rev-parse", "--verify", "HEAD"), "changed": bool(git("status", "--porcelain"))}
