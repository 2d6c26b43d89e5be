from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from duo.engine.background import InterruptibleQueue, background

Put = Callable[[int], None]


def test_items_arrive_in_order_from_another_thread_then_its_exception() -> None:
    def work(put: Put, stop: threading.Event) -> None:
        put(1)
        put(threading.get_ident())
        raise KeyError("lost")

    with background(work, "test") as found:
        items = iter(found)
        assert next(items) == 1
        assert next(items) != threading.get_ident()
        with pytest.raises(KeyError, match="lost"):
            next(items)


def test_a_stall_is_reported_while_no_item_arrives() -> None:
    stalled = threading.Event()

    def work(put: Put, stop: threading.Event) -> None:
        assert stalled.wait(30)
        put(1)

    with background(work, "test") as found:
        found.on_stall, found.stall_s = stalled.set, 0.01
        assert list(found) == [1]


def test_the_end_of_the_block_stops_and_joins_the_work() -> None:
    ended = []

    def work(put: Put, stop: threading.Event) -> None:
        put(1)
        stop.wait(30)
        ended.append(stop.is_set())

    with background(work, "test-background") as found:
        for _ in found:
            break
    assert ended == [True]
    assert "test-background" not in {thread.name for thread in threading.enumerate()}


def test_the_end_interrupts_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duo.engine.background.PAUSE_S", 90)
    items: InterruptibleQueue[int] = InterruptibleQueue()
    items.put(1)
    found, taken = [], threading.Event()

    def take() -> None:
        for item in items:
            found.append(item)
            taken.set()

    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take)
        assert taken.wait(30)
        items.end()
        taking.result(30)
    assert found == [1]


def test_only_the_first_error_of_several_ends_is_raised() -> None:
    items: InterruptibleQueue[int] = InterruptibleQueue()
    items.put(1)
    items.end(KeyError("first"))
    items.end(ValueError("second"))
    found = iter(items)
    assert next(found) == 1
    with pytest.raises(KeyError, match="first"):
        next(found)
