from __future__ import annotations

import time

import numpy as np
import pytest

from duo.diagnose import bandwidth

M = 1 << 20


@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_rate_of_one_thread_and_of_all(monkeypatch: pytest.MonkeyPatch, n_threads: int) -> None:
    monkeypatch.setattr(bandwidth, "_WINDOW_S", 0.02)
    found = bandwidth.measure_bandwidth(n_threads, 64 * M)
    assert found is not None
    assert found.n_threads == n_threads
    assert found.all_threads >= found.one_thread > 1e7
    assert n_threads > 1 or found.all_threads == found.one_thread


def test_bytes_are_counted() -> None:
    over = 0.0  # the time is up at once, after one slice
    assert bandwidth._read(np.ones(1000, np.int32), over) == 4000
    assert bandwidth._read(np.ones(5 << 20, np.int32), over) == bandwidth._SLICE
    assert bandwidth._read(np.ones(1000, np.int32), time.perf_counter() + 0.01) % 4000 == 0


@pytest.mark.parametrize(
    ("available", "caches", "expected"),
    [
        (8192 * M, 32 * M, 512 * M),
        (1024 * M, 32 * M, 256 * M),  # at most a quarter of the available memory
        (None, 32 * M, 512 * M),
        (None, 256 * M, 1024 * M),  # four times the caches
    ],
)
def test_the_amount_of_memory_read(
    monkeypatch: pytest.MonkeyPatch, available: int | None, caches: int, expected: int
) -> None:
    monkeypatch.setattr(bandwidth, "available_bytes", lambda: available)
    monkeypatch.setattr(bandwidth, "_cache_bytes", lambda: caches)
    assert bandwidth._enough() == expected


def test_with_too_little_memory_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "available_bytes", lambda: 100 * M)
    assert bandwidth.measure_bandwidth(1) is None
