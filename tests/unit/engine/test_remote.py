"""Texts with drafts on other machines, whose far end is a thread here, and which come and go."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from duo.engine.draft import DraftRequest
from duo.engine.queue import CandidateQueue, Offer
from duo.link.remote_draft import Admission, RemoteDraft
from duo.link.remote_drafts import RemoteDrafts
from duo.spec.policy import Policy, StepCost
from duo.spec.schedule import Schedule
from duo.spec.types import Guess
from tests.fakes import N_VOCAB, Eager, FakeContext, next_token, text_after
from tests.unit.engine.helpers import PROMPT, draft_threads, make_ending, make_generation, make_request, run, until
from tests.unit.engine.test_draft import Patient
from tests.unit.engine.test_queue import wakes, when_asleep

N = 60
TEXT = text_after(PROMPT, N)
NEXT = len(PROMPT)
COST = StepCost(0, 0.01, 0.01)


class FarEnd(RemoteDraft):
    """Guesses like `choose` on a thread of its own, and knows only what its orders say."""

    def __init__(self, drafts: RemoteDrafts, choose: Callable[[Sequence[int]], int], name: str) -> None:
        super().__init__(drafts, Admission(), self._forget, name)
        self._choose = choose
        self._rung = threading.Event()
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._work)

    async def _forget(self, _: bytes) -> None:
        """It has no wire."""

    def _ring(self) -> None:
        self._rung.set()

    @contextmanager
    def working(self) -> Iterator[FarEnd]:
        self._thread.start()
        try:
            yield self
        finally:
            self._gone.set()
            self._rung.set()
            self._thread.join(60)
            assert not self._thread.is_alive()

    def _work(self) -> None:
        text: tuple[DraftRequest, CandidateQueue] | None = None
        known: list[int] = []
        while not self._gone.is_set():
            self._rung.wait(0.001)
            self._rung.clear()
            if self._current is not text:
                text, known = self._current, []
            if text is None:
                continue
            order = text[1].order(self.policy.latency_s)
            known += order.tokens
            guesses = list(known)
            while order.may_draft and len(guesses) < len(known) + 6 and not self._rung.is_set():
                guess = Guess(self._choose(guesses), 1.0)
                text[1].publish_remote(Offer(order.epoch, len(guesses), guess, 1, 1e-5, len(known)))
                guesses.append(guess.token)


class Line(RemoteDrafts):
    """Drafts of which another one may be chosen at every step; `choose` gives the index."""

    def __init__(
        self,
        make_policy: Callable[[], Policy] = lambda: Eager(4, 6),
        choose: Callable[[], int] | None = None,
        n_target_threads: int = 1,
    ) -> None:
        super().__init__()
        self._make_policy = make_policy
        self._choose = choose
        self.n_target_threads = n_target_threads
        self.all: list[FarEnd] = []

    def new_policy(self, model: str) -> Policy:
        policy = self._make_policy()
        policy.restore_kept(self.learned.get(model))
        return policy

    def add(self, choose: Callable[[Sequence[int]], int] = next_token, model: str = "fake") -> FarEnd:
        async def make() -> FarEnd:
            return FarEnd(self, choose, model)

        made = asyncio.run(make())
        assert self.join(made)
        self.all.append(made)
        return made

    def choose(self, *, has_other: bool) -> RemoteDraft | None:
        if self._choose is None:
            return super().choose(has_other=has_other)
        i = self._choose()
        return self.all[i] if i < len(self.all) else None


def slow_target() -> FakeContext:
    """Each decode takes a millisecond, in which a draft can guess."""
    pause = threading.Event()
    return FakeContext(during=lambda: bool(pause.wait(0.001)), n_batch=32)


def remote(policy: Policy | None = None) -> tuple[FarEnd, CandidateQueue]:
    """A draft that takes part in a text after PROMPT and guesses what a test says; its orders have been read."""
    line = Line(lambda: policy or Eager(4, 6))
    draft = line.add()
    draft.begin(make_request())
    draft._queue.order(0.0)
    return draft, draft._queue


def guess(queue: CandidateQueue, token: int, position: int, n_known: int, epoch: int = 1) -> bool:
    return queue.publish_remote(Offer(epoch, position, Guess(token, 1.0), 1, 0.001, n_known))


# Texts


def test_a_remote_draft_helps_and_changes_nothing() -> None:
    line = Line()
    with line.add().working() as draft:
        target = slow_target()
        target.during = lambda: until(lambda: not target.tokens or generation.metrics.n_pending == 6)
        generation = make_generation(target, None, make_ending(N), remote=line)
        assert run(generation) == TEXT
    assert sum(step.n_accepted for step in generation.metrics.steps) > N / 2
    assert generation.policy is draft.policy
    assert {event.lane for event in generation.metrics.draft_events} == {"remote draft"}
    assert not draft.is_working
    assert draft_threads() == []


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_the_text_is_the_same_while_drafts_come_and_go(seed: int, local: bool) -> None:
    """Good ones and bad ones, another one or the local one at random steps."""
    dice, now = random.Random(seed), [0]

    def choose() -> int:
        if dice.random() < 0.2:
            now[0] = dice.randrange(3)
        return now[0]

    line = Line(choose=choose)
    with line.add().working(), line.add(lambda prefix: len(prefix) % N_VOCAB, "bad").working():
        draft = FakeContext() if local else None
        generation = make_generation(slow_target(), draft, make_ending(N), remote=line)
        assert run(generation) == TEXT
    assert generation.metrics.draft_error is None
    assert draft_threads() == []
    assert not any(draft.is_working for draft in line.all)


def test_each_draft_has_its_number_of_target_threads() -> None:
    numbers = iter([0, 0, 0, 1, 1, 0, 0])
    line = Line(choose=lambda: next(numbers, 1), n_target_threads=9)
    line.add()
    target = FakeContext(n_batch=32)
    generation = make_generation(target, FakeContext(), make_ending(40), remote=line)
    run(generation)
    beside = generation._threads.beside[0]
    assert target.teams[1:6] == [9, 9, beside, beside, 9]


def test_a_remote_draft_that_says_nothing_is_not_waited_for() -> None:
    line = Line(lambda: Policy(4, 6, remote=True))
    line.add()  # its far end never starts
    generation = make_generation(FakeContext(n_batch=32), None, make_ending(N), remote=line)
    assert run(generation) == TEXT
    assert {step.n_candidates for step in generation.metrics.steps} == {0}


def test_what_was_learned_about_a_remote_draft_is_where_one_of_the_same_model_begins() -> None:
    line = Line(lambda: Policy(4, 6, remote=True))
    with line.add().working() as draft:
        generation = make_generation(slow_target(), None, make_ending(N), remote=line)
        assert run(generation) == TEXT
    assert set(line.learned) == {"fake"}
    assert line.learned["fake"]["latency_s"] >= 0
    target_s = draft.policy.alone.target_s(1)
    assert target_s > 0
    assert line.new_policy("fake").alone.target_s(1) == pytest.approx(target_s)
    assert line.new_policy("another").alone.target_s(1) == 0


@pytest.mark.parametrize("local", [True, False])
def test_one_that_is_not_worth_its_time_is_given_up(local: bool) -> None:
    """Another one, or the local draft, may be better."""
    line = Line(lambda: Policy(4, 6, (Schedule.OFF,), remote=True))
    line.add()
    draft = FakeContext() if local else None
    generation = make_generation(slow_target(), draft, make_ending(N), remote=line)
    assert run(generation) == TEXT
    assert line._given_up == [line.all[0]] * len(line._given_up) != []
    assert generation.local is None or generation.draft is generation.local
    line.begin()
    assert line.choose(has_other=True) is line.all[0], "in the next text it may try again"


def test_one_that_is_not_yet_asked_is_not_given_up() -> None:
    """The target is measured alone first; a local draft would take over for good."""
    line = Line(lambda: Policy(4, 6, remote=True))
    line.add()
    generation = make_generation(FakeContext(n_batch=32), FakeContext(), make_ending(3), remote=line)
    run(generation)
    assert line._given_up == []


# What counts of its guesses


def test_its_orders_tell_it_the_text() -> None:
    draft, queue = remote()
    draft.commit((7, 8), COST)
    assert queue.order(0.0) == (draft._session.epoch, [7, 8], True)


def test_only_who_takes_part_gives_guesses() -> None:
    draft, queue = remote()
    assert guess(queue, 7, NEXT, NEXT)
    draft.end()
    assert not guess(queue, 8, NEXT + 1, NEXT)
    assert queue.order(0.0).may_draft is False
    other, _ = remote()
    assert len(other.candidates(9)) == 0


def test_what_it_had_guessed_is_gone_when_another_has_drafted_meanwhile() -> None:
    """Nobody has compared it with the text."""
    draft, _ = remote()
    draft.end()
    request = make_request()
    draft.begin(request)
    before = draft._queue
    assert guess(before, 7, NEXT, NEXT)
    draft.end()
    draft.begin(request)
    queue = draft._queue
    assert len(draft.candidates(9)) == 0
    assert not guess(before, 8, NEXT, NEXT), "it was made before"
    assert not guess(queue, 8, NEXT, NEXT, epoch=9), "what has not begun"
    assert guess(queue, 9, NEXT, NEXT, epoch=request.session.epoch)
    assert draft.candidates(9).tokens == (9,)


def test_what_builds_on_a_wrong_guess_that_came_late_is_stale() -> None:
    """The target was faster; the draft did not know and has sent more already."""
    draft, queue = remote()
    draft.commit((7,), None)
    guess(queue, 8, NEXT, NEXT)  # 7 stands there
    guess(queue, 9, NEXT + 1, NEXT)  # it builds on 8
    assert len(draft.candidates(9)) == 0
    guess(queue, 9, NEXT + 1, NEXT + 1)  # it knew of 7
    assert draft.candidates(9).tokens == (9,)


def test_nobody_knows_the_text_before_it_is_written() -> None:
    draft, queue = remote()
    guess(queue, 9, NEXT, NEXT + 1)
    assert len(draft.candidates(9)) == 0


def test_a_guess_is_scored_once_however_often_it_comes() -> None:
    """Else a draft that is never right in time could look as if it always were."""
    policy = Eager(4, 6)
    draft, queue = remote(policy)
    draft.commit((7,), None)
    draft.commit((8,), None)
    for _ in range(50):
        guess(queue, 7, NEXT, NEXT)
        draft.candidates(9)
    draft.commit((9,), None)
    assert len(policy.scores) == 1


def test_a_gap_counts_as_a_wrong_guess() -> None:
    policy = Eager(4, 6)
    draft, queue = remote(policy)
    guess(queue, 7, NEXT + 2, NEXT)
    assert len(draft.candidates(9)) == 0
    draft.commit((9,), None)
    assert list(policy.scores) == [(1.0, False)]


def test_no_more_are_taken_than_may_be_ahead_and_their_times_count_for_nothing_more() -> None:
    policy = Eager(4, 6)
    draft, queue = remote(policy)
    for i in range(6):
        assert guess(queue, 7, NEXT + i, NEXT)
    assert not guess(queue, 7, NEXT + 6, NEXT)
    assert draft.candidates(9).tokens == (7,) * 4
    assert draft._session.n_pending == 6
    assert draft._drafts.counts["stale"] == 0


def test_a_draft_that_is_worth_nothing_is_asked_for_nothing() -> None:
    _, queue = remote(Policy(4, 6, (Schedule.OFF,), remote=True))
    assert not queue.order(0.0).may_draft


def test_how_long_orders_and_guesses_take_is_learned() -> None:
    policy = Eager(4, 6)
    draft, queue = remote(policy)
    assert policy.latency_s == 0
    guess(queue, 7, NEXT, NEXT)
    draft.candidates(9)
    assert policy.latency_s > 0


def test_a_remote_draft_is_waited_for_but_not_for_ever() -> None:
    """Nobody knows what holds it up."""
    policy = Patient(4, 6, (Schedule.ASYNC,))
    policy.learn_draft(1, 60.0)
    draft, queue = remote(policy)
    assert len(draft.candidates(9)) == 0
    came = when_asleep(queue, lambda: guess(queue, 7, NEXT, NEXT))
    draft._longest_wait_s = 3600.0
    assert wakes(came, lambda: draft.candidates(9)).tokens == (7,)
