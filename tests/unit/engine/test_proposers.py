"""What the target takes, waits for and learns, over a draft that moves only when the test says so."""

import math
from collections.abc import Callable, Sequence

import pytest

from duo.engine.recorder import Clock
from duo.speculation.modes import Schedule
from duo.speculation.types import Candidate, Plan, Planned, Proposal
from tests.fakes import Eager, EagerController, FakeContext, ManualClock
from tests.unit.engine.helpers import PROMPT, Unthreaded, begun, take, until_one_waits, wakes

LONG = 3600.0
NEXT = len(PROMPT)
ASYNC, SYNC = Schedule.ASYNC, Schedule.SYNC


class Patient(EagerController):
    """Waits for ever while there are no candidates."""

    wait_s = LONG

    def plan(self, texts: Sequence[Planned], proposals: Sequence[Proposal]) -> Plan:
        (drafted,) = proposals
        waits = not drafted.candidates and drafted.next_s < math.inf
        return Plan(proposer=0, wait_s=self.wait_s) if waits else Plan(drafted.candidates, 0)


def concurrent(
    kind: type[EagerController] = Patient, draft_s: float = 0.001, clock: Clock | None = None, n_ahead: int = 6
) -> Unthreaded:
    """A concurrent draft that is known to make a token in `draft_s`."""
    estimates = Eager(4, n_ahead)
    estimates.learn_draft(1, draft_s)
    draft = begun(FakeContext(), estimates, clock, kind)
    draft._start_thread()
    return draft


def offer(draft: Unthreaded, token: int = 7, *, position: int = NEXT, seconds: float = 0.001) -> None:
    draft.queue.publish(draft._sequence.epoch, position, Candidate(token, 1.0), 1, seconds)


# Waits


def stale_then_useful(draft: Unthreaded) -> None:
    draft.queue.publish(9, NEXT, Candidate(8, 1.0), 1, 0.001)
    until_one_waits()
    offer(draft)


@pytest.mark.parametrize(
    ("act", "taken"),
    [(lambda draft: draft.queue.close(), ()), (Unthreaded.interrupt, ()), (stale_then_useful, (7,))],
    ids=["end", "interruption", "useful candidate"],
)
def test_what_wakes_the_target(act: Callable[[Unthreaded], None], taken: tuple[int, ...]) -> None:
    draft = concurrent()
    assert wakes(lambda: act(draft), lambda: take(draft)) == taken


def test_a_commit_wakes_the_draft() -> None:
    draft = begun(FakeContext(), Eager(4, 1))
    draft._start_thread()
    offer(draft)
    assert wakes(lambda: draft.wrote(7), draft.queue.wait_for_room) is True


def test_after_a_wait_that_timed_out_the_target_does_not_wait_again_in_this_step() -> None:
    """For a draft that does not deliver: a starved thread, a hung device."""
    expected = []

    class Hopeful(Patient):
        wait_s = 0.001

        def plan(self, texts: Sequence[Planned], proposals: Sequence[Proposal]) -> Plan:
            expected.append(proposals[0].next_s)
            return super().plan(texts, proposals)

    assert take(concurrent(Hopeful)) == ()
    assert expected == [0.001, math.inf]


# What is learned


@pytest.mark.parametrize("schedule", [ASYNC, SYNC])
def test_a_token_drafted_during_a_change_of_schedule_is_scored_and_its_time_ignored(schedule: Schedule) -> None:
    estimates = Eager(4, 6, schedule)
    draft = begun(FakeContext(), estimates)
    if schedule is SYNC:
        draft._start_thread()
    offer(draft, seconds=8.0)
    draft.wrote(7)
    assert draft._sequence.accepted == [*PROMPT, 7]
    assert estimates.scores == [(1.0, True)]
    assert (estimates.costs.alone.token_s, estimates.costs.concurrent.token_s) == (0.0, 0.0)


# When the next candidate is expected


def next_s(draft: Unthreaded) -> float:
    return draft.propose([draft.text]).next_s


def test_the_next_candidate_is_expected_after_the_usual_time_of_a_draft_token() -> None:
    clock = ManualClock()
    draft = concurrent(draft_s=8.0, clock=clock)
    assert next_s(draft) == 8.0, "no token is in progress"
    draft.queue.begin()
    for seconds, left in ((0.0, 8.0), (5.0, 3.0), (9.0, 0.8), (17.0, math.inf)):  # then it has stalled
        clock.time = 100.0 + seconds
        assert next_s(draft) == pytest.approx(left)
    draft.queue.close()
    assert next_s(draft) == math.inf
    draft.queue.open()
    assert next_s(draft) == 8.0, "the token in progress was dropped"


def test_a_stale_token_in_progress_is_drafted_again_if_the_draft_may_continue() -> None:
    clock = ManualClock()
    draft = concurrent(draft_s=8.0, clock=clock, n_ahead=2)
    offer(draft, seconds=8.0)
    draft.queue.begin()
    clock.time += 5.0
    draft.wrote(3)
    assert next_s(draft) == pytest.approx(3.0 + 8.0)
    for position in (1, 2):
        offer(draft, position=NEXT + position)
    assert next_s(draft) == math.inf
