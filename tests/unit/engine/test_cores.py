from __future__ import annotations

import os
import threading

import pytest

from duo.engine import cores
from duo.errors import UsageError


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: frozenset(range(8)))


@pytest.mark.parametrize(
    ("target", "draft", "n_cores", "expected"),
    [
        (None, None, 2, (1, 1)),
        (None, None, 1, (1, 1)),
        (None, None, 8, (6, 2)),
        (3, None, 8, (3, 5)),
        (None, 2, 8, (6, 2)),
        (8, None, 8, (8, 1)),
        (None, 9, 8, (1, 9)),
        (4, 4, 2, (4, 4)),
    ],
)
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
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores.usable_cores() == expected


@pytest.mark.parametrize(("text", "expected"), [("2-4", {2, 3, 4}), ("6-", {6, 7}), ("-1", {0, 1})])
def test_ranges_of_cores(text: str, expected: set[int]) -> None:
    """As llama.cpp parses them."""
    assert cores.parse_range(text) == expected


@pytest.mark.parametrize("text", ["", "3", "a-b", "-", "3-1", "0-99", "1-2-3"])
def test_invalid_ranges_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cores"):
        cores.parse_range(text)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin threads")
def test_pin_applies_to_the_calling_thread_only() -> None:
    before = os.sched_getaffinity(0)
    one, seen = frozenset([min(before)]), []

    def work() -> None:
        cores.pin(one)
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [one]
    assert os.sched_getaffinity(0) == before
