"""Turns: who waits for whom."""

import random

from duo.engine.turns import Turns


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
