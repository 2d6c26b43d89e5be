"""What a working thread makes, on the thread that iterates."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from duo.engine import stream as module
from duo.engine.stream import InterruptibleQueue, background


def test_a_stall_is_reported_and_the_end_of_the_block_stops_and_joins_the_work() -> None:
    stalled, ended = threading.Event(), []

    def work(put: Callable[[int], None], stop: threading.Event) -> None:
        assert stalled.wait(30)
        put(1)
        ended.append(stop.wait(30))
        raise KeyError("lost")

    with background(work, "test-worker") as found:
        found.on_stall, found.stall_s = stalled.set, 0.01
        items = iter(found)
        assert next(items) == 1
    assert ended == [True]
    assert "test-worker" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(KeyError, match="lost"):
        next(items)


def test_no_wait_is_long_because_a_signal_may_have_come_just_before_it() -> None:
    items, waits = InterruptibleQueue[int](), list[float]()

    def get(timeout: float) -> None:
        waits.append(timeout)
        if len(waits) < 100:
            raise queue.Empty

    stalls = list[int]()
    items.on_stall = lambda: stalls.append(len(waits))
    items._items = SimpleNamespace(get=get)  # type: ignore[assignment]
    assert list(items) == []
    assert max(waits) <= 0.5
    assert stalls == [60], "after 30 s"


def test_the_end_interrupts_a_pause_and_the_first_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 90)
    items: InterruptibleQueue[int] = InterruptibleQueue()
    items.put(1)
    taken = iter(items)
    assert next(taken) == 1
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(next, taken)  # it pauses
        items.end(KeyError("first"))
        items.end(ValueError("second"))
        with pytest.raises(KeyError, match="first"):
            taking.result(30)
