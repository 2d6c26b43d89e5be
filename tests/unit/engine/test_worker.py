from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from duo.engine import background as module
from duo.engine.background import Worker
from duo.llama import lifeline
from tests.unit.engine.helpers import until


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


def test_there_is_a_thread_only_while_there_are_jobs(worker: Worker) -> None:
    worker.join()
    for _ in range(2):
        assert threads() == []
        held = Held(worker)
        assert len(threads()) == 1
        held.go.set()
        until(lambda: not threads())


def test_jobs_run_in_order_on_one_thread_also_those_that_a_job_submits(worker: Worker) -> None:
    held, ran = Held(worker), list[tuple[int, int, int]]()

    def job(i: int) -> None:
        ran.append((i, threading.get_ident(), len(threads())))
        if i == 0:
            worker.submit(lambda: job(20))

    for i in range(20):
        worker.submit(lambda i=i: job(i))  # type: ignore[misc]
    (thread,) = threads()
    held.go.set()
    worker.join()
    assert ran == [(i, thread.ident, 1) for i in range(21)]


def test_a_job_submitted_while_the_thread_ends_is_not_lost(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is submitted as soon as the one before has run, when the thread looks for the last time."""
    monkeypatch.setattr(module, "_LINGER_S", 0.0)
    for _ in range(500):
        done = threading.Event()
        worker.submit(done.set)
        assert done.wait(60)


def test_jobs_from_many_threads_run_one_at_a_time(worker: Worker) -> None:
    busy, ran = threading.Lock(), list[int]()

    def job() -> None:
        assert busy.acquire(blocking=False)
        ran.append(1)
        busy.release()

    def submit() -> None:
        for _ in range(200):
            worker.submit(job)

    submitters = [threading.Thread(target=submit) for _ in range(4)]
    for submitter in submitters:
        submitter.start()
    for submitter in submitters:
        submitter.join()
    worker.join()
    assert len(ran) == 800


def test_a_job_that_waits_can_be_dropped_and_one_that_runs_cannot(worker: Worker) -> None:
    ran: list[int] = []

    def first() -> None:
        ran.append(1)

    def second() -> None:
        ran.append(2)

    held = Held(worker)
    worker.submit(first)
    worker.submit(second)
    assert [worker.drop(job) for job in (first, first, held.run)] == [True, False, False]
    held.go.set()
    worker.join()
    assert ran == [2], "join() waits for all jobs"
    assert not worker.drop(second)


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
    assert not worker._runs
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
