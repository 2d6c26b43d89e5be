from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from duo.engine.background import Background


def test_items_arrive_in_order_from_another_thread() -> None:
    def work(put: Callable[[int], None], stop: threading.Event) -> None:
        for _ in range(3):
            put(threading.get_ident())

    with Background(work, "test") as background:
        items = list(background)
    assert len(items) == 3
    assert threading.get_ident() not in items


def test_its_exception_comes_after_its_items() -> None:
    def work(put: Callable[[int], None], stop: threading.Event) -> None:
        put(1)
        raise KeyError("lost")

    with Background(work, "test") as background:
        items = iter(background)
        assert next(items) == 1
        with pytest.raises(KeyError, match="lost"):
            next(items)


def test_a_stall_is_noticed_while_nothing_comes() -> None:
    go_on = threading.Event()

    def work(put: Callable[[int], None], stop: threading.Event) -> None:
        go_on.wait(30)
        put(1)

    with Background(work, "test", on_stall=go_on.set, stall_s=0.01) as background:
        assert list(background) == [1]
    assert go_on.is_set()


def test_leaving_early_stops_and_joins_the_work() -> None:
    ended = []

    def work(put: Callable[[int], None], stop: threading.Event) -> None:
        put(1)
        stop.wait(30)
        ended.append(stop.is_set())

    with Background(work, "test") as background:
        for _ in background:
            break
    assert ended == [True]
    assert not background._thread.is_alive()
