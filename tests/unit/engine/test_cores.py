import threading
from typing import Any

import pytest

from duo.config import EngineConfig, ThreadConfig
from duo.engine import cores
from duo.engine.cores import check_threads, require_threads, tuned_threads, within
from duo.errors import UsageError
from duo.llama.limits import Limit
from tests.fakes import THREADS


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: frozenset(range(8)))


@pytest.mark.parametrize(
    ("target", "draft", "n_cores", "expected"),
    [
        (None, None, 2, (1, 1)), (None, None, 1, (1, 1)), (None, None, 8, (6, 2)), (3, None, 8, (3, 5)),
        (None, 2, 8, (6, 2)), (8, None, 8, (8, 1)), (None, 9, 8, (1, 9)), (4, 4, 2, (4, 4)),
    ],
)  # fmt: skip
def test_cores_are_split_between_the_models(
    target: int | None, draft: int | None, n_cores: int, expected: tuple[int, int]
) -> None:
    assert cores.split_cores(target, draft, n_cores) == expected


@pytest.mark.parametrize(
    ("quota", "n_threads", "expected"), [(None, 1, 8), (2.5, 1, 2), (0.5, 1, 1), (99.0, 1, 8), (None, 2, 4)]
)
def test_usable_cores_respect_quota_and_hardware_threads(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, n_threads: int, expected: int
) -> None:
    monkeypatch.setattr(cores, "_siblings", lambda cpu: str(cpu % (8 // n_threads)))
    monkeypatch.setattr(cores, "cpu_limit", lambda: quota and Limit(quota, ""))
    assert cores.usable_cores() == expected


def test_ranges_of_cores() -> None:
    """As llama.cpp parses them."""
    ranges = {"2-4": {2, 3, 4}, "6-": {6, 7}, "-1": {0, 1}}
    assert {text: cores.parse_range(text) for text in ranges} == ranges
    for text in ("", "3", "a-b", "-", "3-1", "0-99", "1-2-3"):
        with pytest.raises(UsageError, match="cores"):
            cores.parse_range(text)


# Threads


def test_tuned_threads_are_used_unless_they_are_damaged_or_the_user_names_some() -> None:
    kept: Any = {"target": 1, "draft": 1, "concurrent": (1, 1)}
    # The last is from a machine with more cores. More: tests/fuzz/test_profiles.py.
    damaged: list[Any] = [7, kept | {"target": 0}, kept | {"concurrent": 7}, kept | {"concurrent": [10**9, 1]}]
    for damage in damaged:
        assert tuned_threads(THREADS, EngineConfig(), {"threads": damage}) == THREADS
    tuned = tuned_threads(THREADS, EngineConfig(), {"threads": kept})
    assert (tuned.target, tuned.draft, tuned.concurrent) == (1, (1,), (1, 1))
    assert tuned.target_batch == THREADS.target_batch
    for config in (EngineConfig(n_threads=2), EngineConfig(draft_n_threads=2)):
        assert tuned_threads(THREADS, config, {"threads": kept}) == THREADS


def test_threads_that_the_system_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP would end the process with a line of its own."""
    start, before = threading.Thread.start, threading.active_count()
    started: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if len(started) == 7:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(UsageError, match=r"^n_threads: 9 threads are needed, and .* this process start 7 ") as raised:
        check_threads(THREADS, concurrent=True)
    assert raised.value.parameter == "n_threads"
    assert threading.active_count() == before
    started.clear()
    require_threads(7)
    assert threading.active_count() == before


def config(target: int, concurrent: tuple[int, int], *draft: int) -> ThreadConfig:
    return ThreadConfig(target, target, draft, concurrent)


@pytest.mark.parametrize(
    ("threads", "n_cores", "expected"),
    [
        (config(2, (1, 1), 1, 2), 1, config(1, (1, 1), 1)),
        (config(8, (6, 2), 1, 8), 7, config(7, (6, 1), 1, 7)),
        (config(8, (6, 2), 1, 8), 4, config(4, (3, 1), 1, 4)),
        (config(8, (6, 2), 1, 8), 1, config(1, (1, 1), 1)),
        (config(2, (1, 1), 2), 6, config(2, (1, 1), 2)),
        (config(16, (12, 4), 16), 8, config(8, (6, 2), 8)),
    ],
)
def test_threads_within_the_free_cores(threads: ThreadConfig, n_cores: int, expected: ThreadConfig) -> None:
    assert within(threads, n_cores) == expected
    assert within(threads, 0) == threads
