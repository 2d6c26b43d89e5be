"""Runs one process and says what it cost; reads what a result has to name: models, hardware, versions."""

from __future__ import annotations

import hashlib
import os
import platform
import selectors
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

REPOSITORY = Path(__file__).resolve().parent.parent
KV_BYTES = 2  # F16


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process printed, and what it took."""

    stdout: str
    stderr: str
    status: int
    wall_s: float
    first_byte_s: float | None  # from the start of the process to its first byte on stdout
    peak_bytes: int


def run_process(command: list[str], variables: Mapping[str, str], timeout_s: float = 600.0) -> Cost:
    """Run a command to its end, reading both pipes as they fill; it does not outlive an interrupt."""
    # The options decide, not the caller's environment.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_")} | dict(variables)
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        env=environment,
        bufsize=0,
    )
    try:
        return _follow(process, start, timeout_s)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()


def _follow(process: subprocess.Popen[bytes], start: float, timeout_s: float) -> Cost:
    assert process.stdout is not None
    assert process.stderr is not None
    pipes: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    first_byte_s = None
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, start + timeout_s - time.perf_counter()))
            if not ready:
                # Not process.kill(): that might reap it before wait4 does.
                os.kill(process.pid, signal.SIGKILL)
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout and first_byte_s is None:
                    first_byte_s = time.perf_counter() - start
                pipes[key.fileobj] += chunk
        stdout, stderr = (bytes(text).decode("utf-8", "replace") for text in pipes.values())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(
        stdout,
        stderr,
        process.returncode,
        time.perf_counter() - start,
        first_byte_s,
        usage.ru_maxrss * unit,
    )


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


def hardware() -> dict[str, Any]:
    """The processor, its cores and the memory."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": model, "cores": os.cpu_count(), "usable_cores": usable, "memory_bytes": memory}


def versions(peers: Path) -> dict[str, Any]:
    """What was measured: packages, interpreter, system, and the llama.cpp that the peers come from."""
    marker = peers.parent / "VERSION"
    return {
        "duo": _package("duo-llm"),
        "llama-cpp-python": _package("llama-cpp-python"),
        "peers_from_llama-cpp-python": marker.read_text().strip() if marker.exists() else None,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def git_commit() -> dict[str, Any]:
    """The commit of the working tree, and whether it was changed since."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    return {"commit": git("rev-parse", "--verify", "HEAD"), "changed": bool(git("status", "--porcelain"))}
