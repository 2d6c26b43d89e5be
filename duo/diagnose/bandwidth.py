"""How fast this machine reads memory: every token of a model on the CPU reads all its weights once."""

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
_N_WINDOWS = 3  # the best counts: other programs only take away
_USUAL = 512 << 20
_LEAST = 64 << 20
_SLICE = 8 << 20
_CPUS = Path("/sys/devices/system/cpu")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes read per second, by one thread and by `n_threads` together."""

    one_thread: float
    all_threads: float
    n_threads: int


def measure_bandwidth(n_threads: int, n_bytes: int | None = None) -> Bandwidth | None:
    """Read memory for about two seconds; `n_bytes` of it, or as much as no cache holds.

    None where so little memory is left that the caches would be measured.
    """
    n_bytes = n_bytes or _enough()
    if n_bytes < _LEAST:
        return None
    numbers = np.empty(n_bytes // 4, np.int32)
    with ThreadPoolExecutor(n_threads) as threads:
        parts = np.array_split(numbers, n_threads)
        # Memory that was never written is one page of zeros; who writes it first has it near.
        list(threads.map(lambda part: part.fill(1), parts))
        one = max(_rate([numbers], threads) for _ in range(_N_WINDOWS))
        # One thread is fastest where more only get into each other's way.
        together = max(_rate(parts, threads) for _ in range(_N_WINDOWS)) if n_threads > 1 else one
    return Bandwidth(one, max(one, together), n_threads)


def _rate(parts: list[Numbers], threads: ThreadPoolExecutor) -> float:
    """Bytes per second of as many threads as there are parts."""
    start = time.perf_counter()
    n_bytes = sum(threads.map(lambda part: _read(part, start + _WINDOW_S), parts))
    return n_bytes / (time.perf_counter() - start)


def _read(numbers: Numbers, end: float) -> int:
    """Read them again and again until `end`; return how many bytes that were. The GIL is free meanwhile."""
    n_bytes, step = 0, _SLICE // numbers.itemsize
    while True:
        for first in range(0, len(numbers), step):
            part = numbers[first : first + step]
            np.maximum.reduce(part)  # the fastest of numpy's ways to look at every number
            n_bytes += part.nbytes
            if time.perf_counter() >= end:
                return n_bytes


def _enough() -> int:
    """Four times what the last caches hold, and no more than a quarter of the memory that is left."""
    available = available_bytes()
    wanted = max(_USUAL, 4 * _cache_bytes())
    return wanted if available is None else min(wanted, available // 4)


def _cache_bytes() -> int:
    """All caches of the third level together; 0 where the system does not say."""
    caches: dict[str, int] = {}
    for folder in _CPUS.glob("cpu*/cache/index3"):
        with suppress(OSError, ValueError, KeyError):
            size = (folder / "size").read_text(encoding="ascii").strip()  # as in 32768K
            shared = (folder / "shared_cpu_list").read_text(encoding="ascii")
            caches[shared] = int(size[:-1]) * _UNITS[size[-1]]
    return sum(caches.values())
