"""What the target takes, waits for and learns, over a draft that moves only when the test says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from duo.engine.draft import Draft
from duo.spec.policy import Decision, Lookahead, Policy, StepCost
from duo.spec.schedule import Schedule
from duo.spec.types import Candidates, Guess
from tests.fakes import Eager, FakeContext, Scripted, text_after
from tests.unit.engine.helpers import (
    PROMPT,
    Unthreaded,
    Writing,
    as_far_as,
    begun,
    make_ending,
    make_generation,
    make_request,
    run,
    until,
)
from tests.unit.engine.test_queue import wakes, when_asleep

LONG = 3600.0
NEXT = len(PROMPT)
ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF
BESIDE = (ASYNC,)
COST = StepCost(0, 0.1, 0.1)


class Patient(Policy):
    """Waits for ever while there are no candidates."""

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        return Decision(9) if confidences or next_s == math.inf else Decision(0, LONG)


def timed(policy: Policy, draft_s: float = 0.001) -> Unthreaded:
    """A draft beside the target that has made a token in `draft_s`, in a text that is gone."""
    policy.learn_draft(1, draft_s)
    draft = begun(FakeContext(), policy)
    draft._start_thread()
    return draft


def offer(draft: Unthreaded, token: int = 7, *, position: int = NEXT, seconds: float = 0.001) -> None:
    draft.queue.publish(draft.session.epoch, position, Guess(token, 1.0), 1, seconds)


@pytest.mark.parametrize("late", [True, False])
def test_the_target_is_woken_when_the_draft_ends(late: bool) -> None:
    draft = timed(Patient(4, 6, BESIDE))
    end = draft.queue.close
    assert len(wakes(when_asleep(draft.queue, end) if late else end, lambda: draft.candidates(100))) == 0


@pytest.mark.parametrize("late", [True, False])
def test_the_target_is_woken_by_an_interruption(late: bool) -> None:
    draft = timed(Patient(4, 6, BESIDE))
    end = draft.interrupt
    assert len(wakes(when_asleep(draft.queue, end) if late else end, lambda: draft.candidates(100))) == 0


def test_the_target_is_woken_by_a_candidate() -> None:
    draft = timed(Patient(4, 6, BESIDE))
    assert wakes(when_asleep(draft.queue, lambda: offer(draft)), lambda: draft.candidates(100)).tokens == (7,)


def test_what_is_of_no_use_ends_no_wait() -> None:
    draft = timed(Patient(4, 6, BESIDE))

    def useless() -> None:
        draft.queue.publish(9, NEXT, Guess(8, 1.0), 1, 0.001)
        when_asleep(draft.queue, lambda: offer(draft))()

    assert wakes(when_asleep(draft.queue, useless), lambda: draft.candidates(100)).tokens == (7,)


def test_the_draft_is_woken_by_a_commit() -> None:
    draft = begun(FakeContext(), Eager(4, 1))
    draft._start_thread()
    offer(draft)
    act = when_asleep(draft.queue, lambda: draft.commit((7,), None))
    assert wakes(act, draft.queue.wait_for_room) is True


def test_a_wait_in_vain_is_the_last() -> None:
    """A draft that is there and does not deliver (a starved thread, a hung device) keeps the target once per step."""
    decisions = []

    class Hopeful(Policy):
        def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
            decisions.append(next_s)
            return Decision(9) if next_s == math.inf else Decision(0, 0.001)

    draft = timed(Hopeful(4, 6, BESIDE))
    assert draft.candidates(100) == Candidates()
    assert decisions == [0.001, math.inf]


def test_the_draft_is_woken_when_its_rest_ends() -> None:
    """What the policy learns from a step may be what the draft waits for, not the tokens."""

    class Resting(Policy):
        rested = False

        def lookahead(self) -> Lookahead:
            return as_far_as(6 if self.rested else 0)

        def learn_step(self, n_tokens: int, cost: StepCost) -> None:
            self.rested = True

    draft = begun(FakeContext(), Resting(4, 6, BESIDE))
    draft._start_thread()
    act = when_asleep(draft.queue, lambda: draft.commit((7,), COST))
    assert wakes(act, draft.queue.wait_for_room) is True


def test_nothing_is_waited_for_without_a_draft_beside_the_target() -> None:
    draft = timed(Patient(4, 6, BESIDE))
    draft.queue.close()
    assert len(draft.candidates(100)) == 0


def test_without_a_draft_there_are_no_candidates_and_the_text_is_kept() -> None:
    alone, request = Draft(3), make_request()
    alone.begin(request)
    assert len(alone.candidates(100)) == 0
    alone.commit((7, 8), COST)
    assert request.session.accepted == [*PROMPT, 7, 8]
    assert (alone.schedule, alone.n_target_threads, alone.policy) == (OFF, 3, None)


def test_what_another_text_left_is_not_heard() -> None:
    draft = begun(FakeContext(), Eager(4, 6))
    draft._start_thread()
    offer(draft)
    before = draft.queue
    draft.end()
    draft.begin(make_request())
    before.publish(draft.session.epoch, NEXT, Guess(7, 1.0), 1, 0.001)
    assert len(draft.candidates(100)) == 0


def test_what_was_offered_in_the_same_text_before_another_draft_took_over_is_not_heard() -> None:
    draft, request = begun(FakeContext(), Eager(4, 6)), make_request()
    draft.end()
    draft.begin(request)
    offer(draft)
    draft.end()
    draft.begin(request)
    assert len(draft.candidates(100)) == 0
    assert draft.queue.begin() == (draft.session.epoch, PROMPT), "it is told all again"


# What is learned


def test_nothing_is_computed_or_learned_under_the_queues_lock() -> None:
    """There is one thread only: whoever holds the lock would be the one that asks the policy."""
    asked = set()

    class Outside(Scripted):
        drafts: list[Unthreaded]

        def __getattribute__(self, name: str) -> object:
            if not name.startswith("_") and name != "drafts" and (drafts := self.__dict__.get("drafts")):
                lock = drafts[0].queue._changed
                assert lock.acquire(blocking=False), f"{name} under the lock"
                lock.release()
                asked.add(name)
            return super().__getattribute__(name)

    schedules = [ASYNC] * 8 + [SYNC] * 4 + [OFF] * 4
    policy = Outside(2, 6, iter(schedules), iter([False, True] * 20))
    draft = begun(FakeContext(n_batch=100), policy)
    policy.drafts = [draft]
    target = FakeContext(during=lambda: draft.drafter.step() if policy.schedule is ASYNC else None)
    assert run(Writing(target, draft, make_ending(40))) == text_after(PROMPT, 40)
    assert asked >= {
        "decide",
        "lookahead",
        "learn_draft",
        "learn_scores",
        "learn_step",
        "learn_probe",
        "costs",
        "begin",
    }


def test_the_draft_goes_on_while_the_policy_reviews() -> None:
    """A step is learned only when the draft has gone as far ahead as it may."""
    n_reviews = []

    class Slow(Eager):
        def learn_step(self, n_tokens: int, cost: StepCost) -> None:
            until(lambda: writing.metrics.n_pending == self.n_ahead)
            n_reviews.append(n_tokens)
            super().learn_step(n_tokens, cost)

    writing = make_generation(FakeContext(), FakeContext(), make_ending(30), Slow(4, 6))
    assert run(writing) == text_after(PROMPT, 30)
    assert len(n_reviews) > 5


# When the next candidate can be expected


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that both sides see, to be set."""
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


class Asked(Eager):
    """Remembers what it was told of the next candidate."""

    next_s = 0.0

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        self.next_s = next_s
        return Decision(0)


def next_s(draft: Unthreaded) -> float:
    draft.candidates(100)
    assert isinstance(draft.policy, Asked)
    return draft.policy.next_s


def test_the_next_candidate_is_expected_when_a_draft_token_takes_that_long(clock: list[float]) -> None:
    draft = timed(Asked(4, 6), draft_s=8.0)
    assert next_s(draft) == 8.0, "none is in the making"
    draft.queue.begin()
    for seconds, left in ((0.0, 8.0), (5.0, 3.0), (9.0, 0.8)):
        clock[0] = 100.0 + seconds
        assert next_s(draft) == pytest.approx(left)
    clock[0] = 117.0
    assert next_s(draft) == math.inf, "it has stalled"


def test_a_stale_token_in_the_making_has_to_be_made_again(clock: list[float]) -> None:
    draft = timed(Asked(4, 6), draft_s=8.0)
    offer(draft, seconds=8.0)
    draft.queue.begin()
    clock[0] += 5.0
    draft.commit((3,), None)
    assert next_s(draft) == pytest.approx(3.0 + 8.0)


def test_a_token_that_was_given_up_is_not_in_the_making(clock: list[float]) -> None:
    draft = timed(Asked(4, 6), draft_s=8.0)
    draft.queue.begin()
    clock[0] += 5.0
    draft.queue.close()
    assert next_s(draft) == math.inf
    draft.queue.open()
    assert next_s(draft) == 8.0


def test_no_candidate_is_expected_of_a_draft_that_may_not_go_on(clock: list[float]) -> None:
    draft = timed(Asked(4, 1), draft_s=8.0)
    assert next_s(draft) == 8.0
    offer(draft)
    assert next_s(draft) == math.inf


# In turns


def test_in_turns_the_target_has_made_what_it_verifies() -> None:
    context = FakeContext()
    draft = begun(context, Eager(2, 6, SYNC))
    first, second = text_after(PROMPT, 2)
    assert draft.candidates(100) == Candidates((Guess(first, 5.0), Guess(second, 5.0)))
    assert len(context.batches) == 2
    assert draft.candidates(2) == Candidates((Guess(first, 5.0),)), "there is room for no more"
    assert len(context.batches) == 2
    context = FakeContext()
    assert len(begun(context, Eager(2, 6, SYNC)).candidates(2)) == len(context.batches) == 1


def test_in_turns_a_candidate_takes_the_time_of_a_draft_token() -> None:
    policy = Asked(4, 6, SYNC)
    policy.learn_draft(1, 8.0)
    context = FakeContext()
    draft = begun(context, policy)
    assert next_s(draft) == 8.0
    policy.stop_drafting()
    assert draft.candidates(100) == Candidates()
    assert context.batches == []


def test_in_turns_a_draft_that_brought_nothing_is_not_asked_again_in_this_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def bring_nothing() -> bool:
        asked.append(1)
        offer(draft, position=NEXT + 5)
        return True

    draft = begun(FakeContext(), Eager(2, 6, SYNC))
    monkeypatch.setattr(draft.drafter, "step", bring_nothing)
    assert draft.candidates(100) == Candidates()
    assert len(asked) == 1
    draft.commit((3,), None)
    assert draft.candidates(100) == Candidates()
    assert len(asked) == 2


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_a_token_made_in_the_middle_of_a_change_teaches_no_time(schedule: Schedule) -> None:
    """It was made beside the target and ends in turns, or the other way round."""
    policy = Eager(4, 6, schedule)
    draft = begun(FakeContext(), policy)
    if schedule is SYNC:
        draft._start_thread()
    offer(draft, seconds=8.0)
    draft.commit((7,), None)
    assert draft.session.accepted == [*PROMPT, 7]
    assert list(policy.scores) == [(1.0, True)], "but a guess it was"
    assert (policy.alone.draft_s, policy.beside.draft_s) == (0.0, 0.0)


def test_what_was_being_made_when_the_draft_was_stopped_teaches_no_time() -> None:
    policy = Scripted(4, 6, iter([ASYNC, SYNC]))
    draft = begun(FakeContext(), policy)

    def n_timed() -> tuple[int, ...]:
        return tuple(sum(time.n for time in costs._draft.values()) for costs in (policy.beside, policy.alone))

    assert len(draft.candidates(100)) == 0
    for _ in range(2):
        draft.drafter.step()
    draft.commit(text_after(PROMPT, 1), COST)
    assert (policy.schedule, n_timed()) == (SYNC, (1, 0)), "the first has read the prompt"
    draft.drafter.step()
    assert draft.candidates(100).tokens == tuple(text_after(PROMPT, 5)[1:])
    assert n_timed() == (1, 2), "one was made beside the target and two in turns"
