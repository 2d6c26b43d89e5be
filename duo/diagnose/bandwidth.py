"""Memory bandwidth of this machine, which limits models on the CPU: each token reads all weights once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duo.llama.memory import available_bytes

_WINDOW_S = 0.25
_N_WINDOWS = 3  # the fastest counts, because other programs only slow it down
_USUAL = 512 << 20  # bytes to read
_LEAST = 64 << 20  # less would measure the caches
_SLICE = 8 << 20  # bytes between two looks at the clock
_CPUS = Path("/sys/devices/system/cpu")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes read per second by one thread, and by `n_threads` together."""

    one_thread: float
    all_threads: float
    n_threads: int


def measure_bandwidth(n_threads: int, n_bytes: int | None = None) -> Bandwidth | None:
    """Read `n_bytes` (default: more than the caches hold) for about two seconds.

    None if so little memory is available that the caches would be measured.
    """
    n_bytes = n_bytes or _enough()
    if n_bytes < _LEAST:
        return None
    numbers = np.empty(n_bytes // 4, np.int32)
    with ThreadPoolExecutor(n_threads) as threads:
        parts = np.array_split(numbers, n_threads)
        # Memory that was never written maps to one page of zeros; written by its own thread, it is local to it (NUMA).
        list(threads.map(lambda part: part.fill(1), parts))
        one = max(_rate([numbers], threads) for _ in range(_N_WINDOWS))
        together = max(_rate(parts, threads) for _ in range(_N_WINDOWS)) if n_threads > 1 else one
    return Bandwidth(one, max(one, together), n_threads)


def _rate(parts: list[Numbers], threads: ThreadPoolExecutor) -> float:
    """Bytes per second read by one thread for each part."""
    start = time.perf_counter()
    n_bytes = sum(threads.map(lambda part: _read(part, start + _WINDOW_S), parts))
    return n_bytes / (time.perf_counter() - start)


def _read(numbers: Numbers, end: float) -> int:
    """Read `numbers` repeatedly until `end`, without the GIL. Returns the number of bytes."""
    n_bytes, step = 0, _SLICE // numbers.itemsize
    while True:
        for first in range(0, len(numbers), step):
            part = numbers[first : first + step]
            np.maximum.reduce(part)  # numpy's fastest reduction
            n_bytes += part.nbytes
            if time.perf_counter() >= end:
                return n_bytes


def _enough() -> int:
    """Four times the size of the last-level caches, but at most a quarter of the available memory."""
    available = available_bytes()
    wanted = max(_USUAL, 4 * _cache_bytes())
    return wanted if available is None else min(wanted, available // 4)


def _cache_bytes() -> int:
    """Total size of the level-3 caches; 0 if unknown."""
    caches: dict[str, int] = {}
    for folder in _CPUS.glob("cpu*/cache/index3"):
        with suppress(OSError, ValueError, KeyError):
            size = (folder / "size").read_text(encoding="ascii").strip()  # as in 32768K
            shared = (folder / "shared_cpu_list").read_text(encoding="ascii")
            caches[shared] = int(size[:-1]) * _UNITS[size[-1]]
    return sum(caches.values())
