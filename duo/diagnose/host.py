"""The hardware of this machine, whether or not llama.cpp can use it, and the bandwidth of its memory."""

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duo.llama.limits import available_bytes

NVIDIA, AMD, INTEL, APPLE = "NVIDIA", "AMD", "Intel", "Apple"
_PCI_VENDORS = {"0x1002": AMD, "0x8086": INTEL}
# Instruction sets: the system's name and llama.cpp's.
_INSTRUCTIONS = {"avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx512f": "AVX512",
                 "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8"}  # fmt: skip

_N_TIMES = 8  # the fastest counts, because other programs only slow it down
_USUAL = 512 << 20  # bytes to read: more than caches usually hold
_LEAST = 64 << 20  # less would measure the caches

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU known to the system; `vendor` is NVIDIA, AMD, Intel or Apple."""

    vendor: str
    name: str


@dataclass(frozen=True, slots=True)
class Host:
    """The machine; sizes in bytes, None if unknown."""

    system: str  # Linux, Darwin …
    machine: str  # x86_64, arm64 …
    release: str
    cpu: str
    instructions: tuple[str, ...]  # sets that llama.cpp uses, by its names
    gpus: tuple[Gpu, ...]
    memory_total: int
    memory_available: int | None


def read_host(root: Path = Path("/"), system: str | None = None, machine: str | None = None) -> Host:
    """Describe this machine, or one with these files."""
    system, machine = system or platform.system(), machine or platform.machine()
    info = dict(re.findall(r"^(.+?)[ \t]*:[ \t]*(.+)$", _read(root / "proc/cpuinfo"), re.MULTILINE))
    flags = (info.get("flags") or info.get("Features") or "").split()
    is_apple = (system, machine) == ("Darwin", "arm64")
    return Host(
        system=system,
        machine=machine,
        release=platform.release(),
        cpu=info.get("model name") or platform.processor() or machine,
        instructions=tuple(name for flag, name in _INSTRUCTIONS.items() if flag in flags),
        gpus=(*_nvidia(root), *_rendering(root), *([Gpu(APPLE, "Apple GPU")] if is_apple else [])),
        memory_total=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        memory_available=available_bytes(),
    )


def _nvidia(root: Path) -> Iterator[Gpu]:
    """The GPUs listed by NVIDIA's driver, or by nvidia-smi where the driver has no /proc entries (WSL)."""
    found = "".join(map(_read, root.glob("proc/driver/nvidia/gpus/*/information")))
    names = re.findall(r"^Model:(.+)$", found, re.MULTILINE)
    if not names and (program := shutil.which("nvidia-smi")):
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
            names = re.findall(r"^GPU \d+: (.+?)(?: \(UUID.*)?$", done.stdout, re.MULTILINE)
    return (Gpu(NVIDIA, name.strip()) for name in names)


def _rendering(root: Path) -> Iterator[Gpu]:
    """The render nodes of AMD and Intel."""
    for node in sorted(root.glob("dev/dri/renderD*")):
        if vendor := _PCI_VENDORS.get(_read(root / "sys/class/drm" / node.name / "device/vendor").strip()):
            yield Gpu(vendor, f"{vendor} GPU at /dev/dri/{node.name}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Memory bandwidth, which limits models on the CPU: each token reads all weights once


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes read per second by one thread, and by `n_threads` together."""

    one_thread: float
    all_threads: float
    n_threads: int


def measure_bandwidth(n_threads: int, n_bytes: int = _USUAL) -> Bandwidth | None:
    """Of at most `n_bytes`, and a quarter of the available memory; None if that would measure caches."""
    n_bytes = min(n_bytes, available_bytes() // 4)
    if n_bytes < _LEAST:
        return None
    numbers = np.empty(n_bytes // 4, np.int32)
    with ThreadPoolExecutor(n_threads) as threads:
        parts = np.array_split(numbers, n_threads)
        # Memory that was never written maps to one page of zeros; written by its own thread, it is local to it (NUMA).
        list(threads.map(lambda part: part.fill(1), parts))
        one, together = (max(_rate(each, threads) for _ in range(_N_TIMES)) for each in ([numbers], parts))
    return Bandwidth(one, max(one, together), n_threads)


def _rate(parts: list[Numbers], threads: ThreadPoolExecutor) -> float:
    """Bytes per second that one thread for each part reads, without the GIL."""
    start = time.perf_counter()
    list(threads.map(np.maximum.reduce, parts))  # numpy's fastest reduction
    return sum(part.nbytes for part in parts) / (time.perf_counter() - start)
