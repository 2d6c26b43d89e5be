from __future__ import annotations

import os
import threading

import pytest

from duo.engine import cores
from duo.errors import UsageError


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
def test_split(target: int | None, draft: int | None, n_cores: int, expected: tuple[int, int]) -> None:
    assert cores.split_cores(target, draft, n_cores) == expected


def test_hardware_threads_of_one_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: frozenset(range(8)))
    monkeypatch.setattr(cores, "_siblings", lambda cpu: f"{cpu % 4},{cpu % 4 + 4}")
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)
    assert cores.usable_cores() == 4


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (2.5, 2), (0.5, 1), (99.0, 8)])
def test_a_containers_quota_counts(monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: frozenset(range(8)))
    monkeypatch.setattr(cores, "_siblings", str)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores.usable_cores() == expected


def test_ranges_are_read_as_llama_cpp_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: frozenset(range(8)))
    assert cores.parse_range("2-4") == {2, 3, 4}
    assert cores.parse_range("6-") == {6, 7}
    assert cores.parse_range("-1") == {0, 1}


@pytest.mark.parametrize("text", ["", "3", "a-b", "-", "3-1", "0-99", "1-2-3"])
def test_other_ranges_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(cores, "allowed_cores", lambda: frozenset(range(8)))
    with pytest.raises(UsageError, match="cores"):
        cores.parse_range(text)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin threads")
def test_pin_holds_for_the_calling_thread_alone() -> None:
    before = os.sched_getaffinity(0)
    one = frozenset([min(before)])
    seen = []

    def work() -> None:
        cores.pin(one)
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [one]
    assert os.sched_getaffinity(0) == before
