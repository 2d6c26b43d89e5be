"""The hardware of this machine, whether or not llama.cpp can use it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from duo.llama.memory import available_bytes

NVIDIA, AMD, INTEL, APPLE = "NVIDIA", "AMD", "Intel", "Apple"
_PCI_VENDORS = {"0x1002": AMD, "0x8086": INTEL}
_MAC = ("Darwin", "arm64")
# As the system names what a processor can do, and as llama.cpp names what it uses of it.
_INSTRUCTIONS = {"avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx512f": "AVX512",
                 "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the system knows of; `vendor` is NVIDIA, AMD, Intel or Apple."""

    vendor: str
    name: str


@dataclass(frozen=True, slots=True)
class Host:
    """The machine; sizes in bytes, None where the system does not say."""

    system: str  # Linux, Darwin …
    machine: str  # x86_64, arm64 …
    release: str
    cpu: str
    instructions: tuple[str, ...]  # sets that the processor has and llama.cpp uses, by its names
    gpus: tuple[Gpu, ...]
    memory_total: int | None
    memory_available: int | None


def read_host(root: Path = Path("/"), system: str | None = None, machine: str | None = None) -> Host:
    """Look around. Only tests look below another `root`, or at another system."""
    system, machine = system or platform.system(), machine or platform.machine()
    info = _cpu_info(root)
    flags = (info.get("flags") or info.get("Features") or "").split()
    return Host(
        system=system,
        machine=machine,
        release=platform.release(),
        cpu=info.get("model name") or platform.processor() or machine,
        instructions=tuple(name for flag, name in _INSTRUCTIONS.items() if flag in flags),
        gpus=_nvidia(root) + _rendering(root) + ((Gpu(APPLE, "Apple GPU"),) if (system, machine) == _MAC else ()),
        memory_total=_memory_total(),
        memory_available=available_bytes(),
    )


def _cpu_info(root: Path) -> dict[str, str]:
    """The first processor in /proc/cpuinfo."""
    try:
        first = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _nvidia(root: Path) -> tuple[Gpu, ...]:
    """The cards that NVIDIA's driver lists, or its program where there is no /proc (WSL)."""
    names = []
    for path in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        with suppress(OSError):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return tuple(Gpu(NVIDIA, name) for name in names or _listed_by_nvidia_smi())


def _listed_by_nvidia_smi() -> list[str]:
    """The names in lines like `GPU 0: NVIDIA A10 (UUID: GPU-…)`."""
    if not (program := shutil.which("nvidia-smi")):
        return []
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("GPU ")]
    return [line.partition(" (UUID")[0] for line in lines]


def _rendering(root: Path) -> tuple[Gpu, ...]:
    """AMD's and Intel's GPUs among those that programs may compute on."""
    found = []
    for node in sorted(root.glob("dev/dri/renderD*")):
        with suppress(OSError):
            vendor = (root / "sys/class/drm" / node.name / "device/vendor").read_text(encoding="ascii").strip()
            if vendor in _PCI_VENDORS:
                found.append(Gpu(_PCI_VENDORS[vendor], f"{_PCI_VENDORS[vendor]} GPU at /dev/dri/{node.name}"))
    return tuple(found)


def _memory_total() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
