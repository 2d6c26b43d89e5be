import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from duo.engine import background as module
from duo.engine.background import InterruptibleQueue, Worker, background
from duo.llama import lifeline
from tests.unit.engine.helpers import until


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
    assert threads() == []
    with pytest.raises(KeyError, match="lost"):
        next(items)


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


# Worker


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "test-worker"]


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("test-worker")
    yield made
    made.join()
    assert threads() == []


class Held:
    """A job that lasts until `go` is set."""

    def __init__(self, worker: Worker) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        worker.submit(self.run)
        assert self.began.wait(60)

    def run(self) -> None:
        self.began.set()
        assert self.go.wait(60)


def test_jobs_run_in_order_on_one_thread_that_exists_only_while_there_are_any(worker: Worker) -> None:
    held, ran = Held(worker), list[tuple[int, int, int]]()

    def job(i: int) -> None:
        ran.append((i, threading.get_ident(), len(threads())))
        if i == 0:
            worker.submit(lambda: job(20))

    for i in range(20):
        worker.submit(lambda i=i: job(i))  # type: ignore[misc]
    (thread,) = threads()
    held.go.set()
    until(lambda: not threads())
    assert ran == [(i, thread.ident, 1) for i in range(21)]


def test_a_job_submitted_while_the_thread_ends_is_not_lost(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is submitted as soon as the one before has run, when the thread looks for the last time."""
    monkeypatch.setattr(module, "_LINGER_S", 0.0)
    for _ in range(500):
        done = threading.Event()
        worker.submit(done.set)
        assert done.wait(60)


@pytest.mark.parametrize("after", [False, True])
def test_a_job_whose_thread_does_not_start_is_not_kept_and_the_next_one_runs(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Ctrl-C in Thread.start(), before the thread exists or after it."""
    monkeypatch.setattr(module, "_LINGER_S", 1000.0)
    ran: list[int] = []

    class Interrupted(threading.Thread):
        def start(self) -> None:
            if after:
                super().start()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                worker.submit(lambda: ran.append(1))
            until(lambda: not threads())
    worker.submit(lambda: ran.append(2))
    worker.join()
    assert ran == [2]


def test_join_does_not_wait_for_a_lost_thread(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp may hold a thread for ever."""
    held = Held(worker)
    monkeypatch.setattr(lifeline, "is_lost", lambda: True)
    worker.join()
    assert len(threads()) == 1
    monkeypatch.undo()
    held.go.set()
