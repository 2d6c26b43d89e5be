from __future__ import annotations

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


def test_with_too_little_memory_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a quarter of what is available is used."""
    monkeypatch.setattr(bandwidth, "available_bytes", lambda: 100 * M)
    assert bandwidth.measure_bandwidth(1) is None
