"""Numbers of threads from a profile."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from duo.config import EngineConfig, ThreadConfig
from duo.engine.threads import check_threads, kept_threads, require_threads, tuned_threads, within
from duo.errors import UsageError
from tests.fakes import THREADS


@pytest.mark.parametrize(
    "threads",
    [
        None,
        7,
        [],
        "x",
        {"target": 1},
        {"target": 1, "draft": 1, "beside": "11"},
        {"target": True, "draft": 1, "beside": [1, 1]},
        {"target": 1.0, "draft": 1, "beside": [1, 1]},
        {"target": 1, "draft": 1, "beside": [1, 1, 1]},
        {"target": "x", "draft": 1, "beside": [1, 1]},
        {"target": 0, "draft": 1, "beside": [1, 1]},
        {"target": 1, "draft": 1, "beside": 7},
        {"target": 1, "draft": 1, "beside": [10**9, 1]},
        {"target": math.inf, "draft": 1, "beside": [1, 1]},
    ],
)
def test_damaged_threads_are_ignored(threads: Any) -> None:
    assert tuned_threads(THREADS, EngineConfig(), {"threads": threads}) == THREADS
    if not isinstance(threads, dict) or threads.get("beside") != [10**9, 1]:  # another machine may have as many
        assert kept_threads({"threads": threads}) == {}, "is not saved again"


def test_tuned_threads_are_used_unless_the_user_names_some() -> None:
    kept = {"threads": {"target": 1, "draft": 1, "beside": [1, 1]}}
    tuned = tuned_threads(THREADS, EngineConfig(), kept)
    assert (tuned.target, tuned.draft, tuned.beside) == (1, (1,), (1, 1))
    assert tuned.target_batch == THREADS.target_batch
    for config in (EngineConfig(n_threads=2), EngineConfig(draft_n_threads=2)):
        assert tuned_threads(THREADS, config, kept) == THREADS


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
        check_threads(THREADS, beside=True)
    assert raised.value.parameter == "n_threads"
    assert threading.active_count() == before
    started.clear()
    require_threads(7)
    assert threading.active_count() == before


def config(target: int, beside: tuple[int, int], draft: tuple[int, ...] = (1,)) -> ThreadConfig:
    return ThreadConfig(target, target, draft, beside)


@pytest.mark.parametrize(
    ("threads", "n_cores", "expected"),
    [
        (config(2, (1, 1), (1, 2)), 1, config(1, (1, 1))),
        (config(8, (6, 2), (1, 8)), 7, config(7, (6, 1), (1, 7))),
        (config(8, (6, 2), (1, 8)), 4, config(4, (3, 1), (1, 4))),
        (config(8, (6, 2), (1, 8)), 1, config(1, (1, 1))),
        (config(2, (1, 1), (2,)), 6, config(2, (1, 1), (2,))),
        (config(16, (12, 4), (16,)), 8, config(8, (6, 2), (8,))),
    ],
)
def test_threads_within_the_free_cores(threads: ThreadConfig, n_cores: int, expected: ThreadConfig) -> None:
    assert within(threads, n_cores) == expected
    assert within(threads, 0) == threads
