"""The scheduler: who waits for whom, and the thread, which exists only while there is work."""

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest

from duo.engine import scheduler as module
from duo.engine.model_pair import ModelPair
from duo.engine.scheduler import Scheduler
from duo.engine.turns import Turns
from duo.llama import lifeline
from tests.scripted import ScriptedSlot
from tests.unit.engine.helpers import until


def taken(turns: Turns[str]) -> list[str]:
    return [turns.take() for _ in range(len(turns))]


def test_jobs_of_one_client_keep_their_order_whatever_they_cost() -> None:
    turns = Turns[str]()
    for name, cost in (("a", 64), ("b", 4), ("c", 0), ("d", 64)):
        turns.add(name, cost=cost)
    assert taken(turns) == ["a", "b", "c", "d"]


def test_clients_take_turns() -> None:
    turns = Turns[str]()
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        turns.add(name, name[0], 64)
    assert taken(turns) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_who_asks_for_little_waits_little_whenever_he_comes() -> None:
    for n_before in range(60):
        turns = Turns[str]()
        for i in range(60):
            turns.add(f"{i}", i, 64)
        for _ in range(n_before):
            turns.take()
        turns.add("short", "other", 4)
        assert "short" in taken(turns)[:4], n_before


def test_nobody_starves() -> None:
    """One who asks for much, beside others of whom there are always new ones that ask for little."""
    turns, dice = Turns[str](), random.Random(1)
    turns.add("long", "long", 64)
    for i in range(20):
        turns.add("short", i, 4)
    for n_taken in range(5000):
        if turns.take() == "long":
            break
        turns.add("short", f"new {n_taken}", dice.choice([1, 4]))
    assert 100 < n_taken < 2000


def test_a_job_that_is_removed_costs_its_client_nothing() -> None:
    turns = Turns[str]()
    for name in ("a1", "a2", "a3", "a4"):
        turns.add(name, "a", 64)
    turns.add("b", "b", 100)
    for name in ("a1", "a2", "a3", "a4"):
        assert turns.remove(turns._jobs[0][3]) == (name != "")
    assert not turns.remove("a1")
    turns.add("a5", "a", 64)
    assert taken(turns) == ["a5", "b"]


# The thread


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "duo-target"]


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with closing(Scheduler(cast(ModelPair, ScriptedSlot()))) as made:
        yield made
    assert threads() == []


class Held:
    """A job that lasts until `go` is set."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        scheduler.add(self.run)
        assert self.began.wait(60)

    def run(self) -> None:
        self.began.set()
        assert self.go.wait(60)


def test_jobs_run_in_order_on_one_thread_that_exists_only_while_there_are_any(scheduler: Scheduler) -> None:
    held, ran = Held(scheduler), list[tuple[int, int, int]]()

    def job(i: int) -> None:
        ran.append((i, threading.get_ident(), len(threads())))
        if i == 0:
            scheduler.add(lambda: job(20))

    for i in range(20):
        scheduler.add(lambda i=i: job(i))  # type: ignore[misc]
    (thread,) = threads()
    held.go.set()
    until(lambda: not threads())
    assert ran == [(i, thread.ident, 1) for i in range(21)]


def test_a_job_submitted_while_the_thread_ends_is_not_lost(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is submitted as soon as the one before has run, when the thread looks for the last time."""
    monkeypatch.setattr(module, "_LINGER_S", 0.0)
    for _ in range(500):
        done = threading.Event()
        scheduler.add(done.set)
        assert done.wait(60)


@pytest.mark.parametrize("after", [False, True])
def test_a_job_whose_thread_does_not_start_is_not_kept_and_the_next_one_runs(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, after: bool
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
                scheduler.add(lambda: ran.append(1))
            until(lambda: not threads())
    scheduler.add(lambda: ran.append(2))
    scheduler.close()
    assert ran == [2]


def test_close_does_not_wait_for_a_lost_thread(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp may hold a thread for ever."""
    held = Held(scheduler)
    monkeypatch.setattr(lifeline, "is_lost", lambda: True)
    scheduler.close()
    assert len(threads()) == 1
    monkeypatch.undo()
    held.go.set()
    until(lambda: not threads())
