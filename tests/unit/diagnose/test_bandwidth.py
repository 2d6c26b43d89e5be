"""How fast memory is read."""

from __future__ import annotations

import time

import numpy as np
import pytest

from duo.diagnose import bandwidth


def test_it_finds_a_rate_for_one_thread_and_for_all() -> None:
    found = bandwidth.measure_bandwidth(2, 64 << 20)
    assert found is not None
    assert found.n_threads == 2
    assert found.all_threads >= found.one_thread > 1e8, "a disk is faster than that"


def test_with_one_thread_there_is_one_figure() -> None:
    found = bandwidth.measure_bandwidth(1, 64 << 20)
    assert found is not None
    assert found.all_threads == found.one_thread


def test_what_is_read_is_counted() -> None:
    over = 0.0  # the time is up at once, after one slice
    assert bandwidth._read(np.ones(1000, np.int32), over) == 4000
    assert bandwidth._read(np.ones(5 << 20, np.int32), over) == bandwidth._SLICE
    assert bandwidth._read(np.ones(1000, np.int32), time.perf_counter() + 0.01) % 4000 == 0


@pytest.mark.parametrize(("available", "expected"), [(8 << 30, 512 << 20), (1 << 30, 256 << 20), (None, 512 << 20)])
def test_no_more_than_a_quarter_of_the_memory_that_is_left(
    monkeypatch: pytest.MonkeyPatch, available: int | None, expected: int
) -> None:
    monkeypatch.setattr(bandwidth, "available_bytes", lambda: available)
    monkeypatch.setattr(bandwidth, "_cache_bytes", lambda: 32 << 20)
    assert bandwidth._enough() == expected


def test_with_too_little_memory_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "available_bytes", lambda: 100 << 20)
    assert bandwidth.measure_bandwidth(1) is None


def test_large_caches_want_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "available_bytes", lambda: None)
    monkeypatch.setattr(bandwidth, "_cache_bytes", lambda: 256 << 20)
    assert bandwidth._enough() == 1 << 30
