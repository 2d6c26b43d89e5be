"""One job after the other, on a thread that there is only while there are jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from duo.engine import worker as module
from duo.engine.worker import Worker
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
    """A job that lasts until it is let go."""

    def __init__(self, worker: Worker) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        worker.submit(self._run)
        assert self.began.wait(60)

    def _run(self) -> None:
        self.began.set()
        assert self.go.wait(60)


def test_there_is_no_thread_while_there_is_no_job(worker: Worker) -> None:
    assert threads() == []
    worker.join()  # of nothing
    held = Held(worker)
    assert len(threads()) == 1
    held.go.set()
    until(lambda: not threads())
    done = threading.Event()
    worker.submit(done.set)
    assert done.wait(60), "and there is one again"
    until(lambda: not threads())


def test_jobs_run_in_order_one_at_a_time_on_one_thread(worker: Worker) -> None:
    held = Held(worker)
    ran: list[tuple[int, int, int]] = []
    for i in range(50):
        worker.submit(lambda i=i: ran.append((i, threading.get_ident(), len(threads()))))  # type: ignore[misc]
    (thread,) = threads()
    held.go.set()
    worker.join()
    assert ran == [(i, thread.ident, 1) for i in range(50)]


def test_no_job_is_lost_that_comes_while_the_thread_ends(worker: Worker) -> None:
    """Each is submitted as soon as the one before has run, in which moment the thread looks for the last time."""
    worker._joins = True  # it does not linger
    for _ in range(2000):
        done = threading.Event()
        worker.submit(done.set)
        assert done.wait(60)


def test_jobs_from_many_threads_all_run_and_never_two_at_once(worker: Worker) -> None:
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


def test_a_job_may_submit_another(worker: Worker) -> None:
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        worker.submit(lambda: ran.append("third"))

    held = Held(worker)
    worker.submit(first)
    worker.submit(lambda: ran.append("second"))
    held.go.set()
    worker.join()
    assert ran == ["first", "second", "third"]


def test_a_job_that_waits_can_be_dropped_and_one_that_runs_cannot(worker: Worker) -> None:
    ran: list[int] = []

    def first() -> None:
        ran.append(1)

    def second() -> None:
        ran.append(2)

    held = Held(worker)
    worker.submit(first)
    worker.submit(second)
    assert worker.drop(first)
    assert not worker.drop(first)
    assert not worker.drop(held._run)
    held.go.set()
    worker.join()
    assert ran == [2]
    assert not worker.drop(second)


def test_join_waits_for_all_that_wait(worker: Worker) -> None:
    held, ran = Held(worker), list[int]()
    worker.submit(lambda: ran.append(1))
    joined: list[list[int]] = []

    def join() -> None:
        worker.join()
        joined.append(list(ran))

    joiner = threading.Thread(target=join)
    joiner.start()
    held.go.set()
    joiner.join(60)
    assert joined == [[1]]


def test_a_thread_that_is_held_for_ever_is_not_waited_for(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(worker)
    monkeypatch.setattr(module, "is_lost", lambda: True)
    worker.join()
    assert len(threads()) == 1
    monkeypatch.undo()
    held.go.set()
