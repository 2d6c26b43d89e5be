"""Numbers of threads from a profile."""

from __future__ import annotations

import math
from typing import Any

import pytest

from duo.config import EngineConfig
from duo.engine.threads import tuned_threads
from tests.fakes import THREADS


@pytest.mark.parametrize(
    "threads",
    [
        None,
        7,
        [],
        "x",
        {"target": 1},
        {"target": "x", "draft": 1, "beside": [1, 1]},
        {"target": 0, "draft": 1, "beside": [1, 1]},
        {"target": 1, "draft": -1, "beside": [1, 1]},
        {"target": 1, "draft": 1, "beside": [1]},
        {"target": 1, "draft": 1, "beside": 7},
        {"target": 1, "draft": 1, "beside": [10**9, 1]},
        {"target": math.inf, "draft": 1, "beside": [1, 1]},
        {"target": math.nan, "draft": 1, "beside": [1, 1]},
    ],
)
def test_damaged_threads_are_ignored(threads: Any) -> None:
    assert tuned_threads(THREADS, EngineConfig(), {"threads": threads}) == THREADS


def test_tuned_threads_are_used_unless_the_user_names_some() -> None:
    kept = {"threads": {"target": 1, "draft": 1, "beside": [1, 1]}}
    tuned = tuned_threads(THREADS, EngineConfig(), kept)
    assert (tuned.target, tuned.draft, tuned.beside) == (1, (1,), (1, 1))
    assert tuned.target_batch == THREADS.target_batch
    for config in (EngineConfig(n_threads=2), EngineConfig(draft_n_threads=2)):
        assert tuned_threads(THREADS, config, kept) == THREADS
