"""Drafts on other machines, as fakes that guess on threads of their own and come and go."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from duo.engine.metrics import Metrics
from duo.engine.queue import CandidateQueue, Helper
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.types import Guess
from tests.engine.helpers import PROMPT, draft_threads, make_ending, make_generation, make_queue, run
from tests.fakes import N_VOCAB, Eager, FakeContext, next_token, text_after

N = 60
TEXT = text_after(PROMPT, N)


class Elsewhere(Eager):
    """Verifies whatever is there, also of drafts elsewhere."""

    def for_draft_elsewhere(self) -> Policy:
        return Eager(self.n_max, self.n_ahead)


class FakeHelper:
    """Guesses like `choose`, knows only what its orders say."""

    def __init__(self, choose: Callable[[Sequence[int]], int] = next_token, model: str = "fake") -> None:
        self.model = model
        self.queue: CandidateQueue | None = None
        self.n_useful = 0
        self._choose = choose
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def notify(self) -> None:
        self._wake.set()

    @contextmanager
    def working(self) -> Iterator[FakeHelper]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._wake.set()
            self._thread.join(30)
            assert not self._thread.is_alive()

    def _run(self) -> None:
        known: list[int] = []
        queue: CandidateQueue | None = None
        while not self._ended.is_set():
            if queue is not self.queue:
                queue, known = self.queue, []
            order = queue.order(self, len(known)) if queue is not None else None
            if order is None:
                self._wake.wait(0.001)
                self._wake.clear()
                continue
            known += order.tokens
            guesses = list(known)
            assert queue is not None
            while order.may_draft and len(guesses) < len(known) + 6 and not self._wake.is_set():
                guess = Guess(self._choose(guesses), 1.0)
                self.n_useful += queue.publish_from(self, order.epoch, len(known), len(guesses), guess, 1, 1e-5)
                guesses.append(guess.token)
            self._wake.wait(0.001)
            self._wake.clear()


class Line:
    """Helpers of which another one may be active at every step."""

    def __init__(self, *helpers: FakeHelper, choose: Callable[[], int] = lambda: 0) -> None:
        self.helpers = helpers
        self.kept: dict[str, Any] = {}
        self.begun = self.ended = 0
        self.given_up: list[Helper] = []
        self._choose = choose
        self._working = threading.Event()

    def begin(self, queue: CandidateQueue, _: Metrics) -> None:
        self.begun += 1
        for helper in self.helpers:
            helper.queue = queue

    def end(self) -> None:
        self.ended += 1

    def active(self, *, otherwise: bool) -> Helper | None:
        i = self._choose()
        return self.helpers[i] if i < len(self.helpers) else None

    def give_up(self, helper: Helper) -> None:
        self.given_up.append(helper)

    def learned(self, helper: Helper) -> dict[str, Any] | None:
        return self.kept.get(helper.model)

    def learn(self, helper: Helper, state: dict[str, Any]) -> None:
        self.kept[helper.model] = state


def slow_target(pause: threading.Event) -> FakeContext:
    """Each decode takes a millisecond, in which a draft can guess."""
    return FakeContext(during=lambda: bool(pause.wait(0.001)), n_batch=32)


def test_a_draft_elsewhere_helps_and_changes_nothing() -> None:
    with FakeHelper().working() as helper:
        line = Line(helper)
        generation = make_generation(slow_target(threading.Event()), None, make_ending(N), Elsewhere(4, 6))
        generation.helpers = line
        assert run(generation) == TEXT
    assert sum(step.n_accepted for step in generation.metrics.steps) > 0
    assert (line.begun, line.ended) == (1, 1)
    assert generation.used_policy is not generation.policy
    assert draft_threads() == []


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_the_text_is_the_same_while_drafts_come_and_go(seed: int, local: bool) -> None:
    """Good ones and bad ones, another one or the local one at random steps."""
    dice = random.Random(seed)
    with FakeHelper().working() as good, FakeHelper(lambda prefix: len(prefix) % N_VOCAB, "bad").working() as bad:
        now = [0]

        def choose() -> int:
            if dice.random() < 0.2:
                now[0] = dice.randrange(3)
            return now[0]

        draft = FakeContext() if local else None
        generation = make_generation(slow_target(threading.Event()), draft, make_ending(N), Elsewhere(4, 6))
        generation.helpers = Line(good, bad, choose=choose)
        assert run(generation) == TEXT
    assert generation.metrics.draft_error is None
    assert draft_threads() == []


def test_a_draft_elsewhere_that_says_nothing_is_not_waited_for() -> None:
    silent = FakeHelper()  # never starts
    generation = make_generation(FakeContext(n_batch=32), None, make_ending(N), Policy(4, 6))
    generation.helpers = Line(silent)
    assert run(generation) == TEXT
    assert {step.n_candidates for step in generation.metrics.steps} == {0}


def test_what_was_learned_about_a_draft_elsewhere_is_where_the_next_text_begins() -> None:
    with FakeHelper().working() as helper:
        line = Line(helper)
        for _ in range(2):
            generation = make_generation(slow_target(threading.Event()), None, make_ending(N), Policy(4, 6))
            generation.helpers = line
            assert run(generation) == TEXT
            assert set(line.kept) == {"fake"}
    assert line.kept["fake"]["latency_s"] >= 0


def test_only_who_is_employed_gets_orders_and_gives_guesses() -> None:
    queue, one, other = make_queue(), FakeHelper(), FakeHelper()
    assert queue.order(one, 0) is None
    queue.employ(Eager(4, 6), one)
    order = queue.order(one, 0)
    assert order is not None
    assert order.tokens == PROMPT
    assert order.may_draft
    assert queue.order(other, 0) is None
    assert not queue.publish_from(other, order.epoch, 3, 3, Guess(1, 1.0), 1, 0.001)
    assert queue.publish_from(one, order.epoch, 3, 3, Guess(1, 1.0), 1, 0.001)
    queue.employ(Eager(4, 6), other)
    assert not queue.publish_from(one, order.epoch, 3, 4, Guess(1, 1.0), 1, 0.001)
    assert len(queue.take(9)) == 0, "what the one before had guessed is gone"


def test_no_more_guesses_are_kept_than_may_be_ahead() -> None:
    queue, helper = make_queue(), FakeHelper()
    queue.employ(Eager(4, 6), helper)
    taken = [queue.publish_from(helper, 1, 3, 3 + i, Guess(1, 1.0), 1, 0.001) for i in range(100)]
    assert taken == [True] * 6 + [False] * 94


def test_what_builds_on_a_wrong_guess_that_came_late_is_stale() -> None:
    """The target was faster; the draft did not know and has sent more already."""
    queue, helper = make_queue(), FakeHelper()
    queue.employ(Eager(4, 6), helper)
    queue.commit((7,))
    assert not queue.publish_from(helper, 1, 3, 3, Guess(8, 1.0), 1, 0.001), "7 stands there"
    assert not queue.publish_from(helper, 1, 3, 4, Guess(9, 1.0), 1, 0.001), "it builds on 8"
    assert queue.publish_from(helper, 1, 4, 4, Guess(9, 1.0), 1, 0.001), "it knew of 7"
    assert queue.take(9).tokens == (9,)


def test_what_was_guessed_before_it_was_employed_is_not_heard() -> None:
    """Nobody has compared it with the text meanwhile."""
    queue, helper = make_queue(), FakeHelper()
    queue.employ(Eager(4, 6), helper)
    queue.employ(Eager(4, 6), FakeHelper())
    queue.employ(Eager(4, 6), helper)
    assert not queue.publish_from(helper, 1, 3, 3, Guess(8, 1.0), 1, 0.001)
    assert not queue.publish_from(helper, 4, 3, 3, Guess(8, 1.0), 1, 0.001), "nor what has not begun"
    assert queue.publish_from(helper, 3, 3, 3, Guess(8, 1.0), 1, 0.001)


def test_a_draft_that_is_worth_nothing_is_asked_for_nothing() -> None:
    queue, helper = make_queue(Policy(4, 6)), FakeHelper()
    queue.employ(Policy(4, 6, (Schedule.OFF,), elsewhere=True), helper)
    order = queue.order(helper, 0)
    assert order is not None
    assert not order.may_draft


def test_one_that_is_not_worth_its_time_is_given_up() -> None:
    """Another one, or the local draft, may be better."""

    class Sure(Elsewhere):
        def for_draft_elsewhere(self) -> Policy:
            return Policy(4, 6, (Schedule.OFF,), elsewhere=True)

    helper = FakeHelper()
    line = Line(helper)
    generation = make_generation(FakeContext(n_batch=32), None, make_ending(N), Sure(4, 6))
    generation.helpers = line
    assert run(generation) == TEXT
    assert set(line.given_up) == {helper}


def test_a_guess_is_scored_once_however_often_it_comes() -> None:
    """Else a draft that is never right in time could look as if it always were."""
    policy = Eager(4, 6)
    queue, helper = make_queue(), FakeHelper()
    queue.employ(policy, helper)
    queue.commit((7,))
    queue.commit((8,))
    for _ in range(50):
        queue.publish_from(helper, 1, 3, 3, Guess(7, 1.0), 1, 0.001)
    queue.commit((9,))
    assert len(policy.scores) == 1


def test_a_gap_counts_as_a_wrong_guess() -> None:
    policy = Eager(4, 6)
    queue, helper = make_queue(), FakeHelper()
    queue.employ(policy, helper)
    assert not queue.publish_from(helper, 1, 3, 5, Guess(7, 1.0), 1, 0.001)
    queue.commit((9,))
    assert list(policy.scores) == [(1.0, False)]


def test_one_that_is_not_yet_asked_is_not_given_up() -> None:
    """The target is measured alone first; a local draft would take over for good."""

    class Untried(Elsewhere):
        def for_draft_elsewhere(self) -> Policy:
            return Policy(4, 6, elsewhere=True)

    line = Line(FakeHelper())
    generation = make_generation(FakeContext(n_batch=32), FakeContext(), make_ending(3), Untried(4, 6))
    generation.helpers = line
    run(generation)
    assert line.given_up == []
