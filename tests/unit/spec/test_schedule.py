"""The choice among schedules, and the budget for finding out. The target alone takes 0.1 s per token."""

import pytest

from duo.spec.constants import DEFAULT
from duo.spec.schedule import ALL, Change, Chooser, Outlook, Outlooks, Schedule

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF

ALONE_S = 0.1
ADVANCE_S = DEFAULT.advance * ALONE_S
SAVED_S = DEFAULT.horizon * (1 / 10 - 1 / 20)  # within the horizon, at 20 instead of 10 tokens/s


def rates(concurrent: float = 10.0, sequential: float = 10.0, off: float = 10.0, doubt: float = 0.0) -> Outlooks:
    """Forecasts in tokens/s; `doubt`: relative uncertainty of those with a draft."""
    found = {schedule: Outlook(rate, rate * (1 - doubt), rate * (1 + doubt))
             for schedule, rate in ((ASYNC, concurrent), (SYNC, sequential))}  # fmt: skip
    return {**found, OFF: Outlook(off, off, off)}


def following(
    schedule: Schedule, allowed: tuple[Schedule, ...] = ALL, n_room: int | None = None, credit_s: float = 0.0
) -> Chooser:
    """A chooser that has made one token in `schedule`, as fast as the target alone."""
    chooser = Chooser(allowed, DEFAULT, schedule)
    chooser.budget.carry(credit_s - DEFAULT.time_share * ALONE_S)
    chooser.begin(allowed, n_room, is_first=False)
    chooser.step(1, ALONE_S, ALONE_S)
    assert chooser.now is schedule
    assert chooser.budget.credit_s == pytest.approx(credit_s)
    return chooser


def run(chooser: Chooser, outlooks: Outlooks, n_steps: int, entry_s: float = 0.0) -> None:
    """Continue for `n_steps` steps of one token, each as fast as forecast."""
    for _ in range(n_steps):
        if chooser.step(1, 1 / outlooks[chooser.now].rate, 1 / outlooks[OFF].rate):
            chooser.review(outlooks, entry_s)


def after_review(chooser: Chooser, outlooks: Outlooks, entry_s: float = 0.0) -> Schedule:
    chooser.review(outlooks, entry_s)
    return chooser.now


# The first schedule, and when it is reviewed


@pytest.mark.parametrize(
    ("allowed", "first", "found"),
    [(ALL, OFF, OFF), (ALL, ASYNC, ASYNC), ((ASYNC, SYNC), OFF, SYNC), ((SYNC,), ASYNC, SYNC)],
)
def test_each_text_starts_with_the_same_schedule(
    allowed: tuple[Schedule, ...], first: Schedule, found: Schedule
) -> None:
    chooser = Chooser(allowed, DEFAULT, first)
    assert chooser.now is found
    run(chooser, rates(concurrent=20.0 if found is not ASYNC else 1.0), 100)
    chooser.begin(allowed, None, is_first=False)
    assert chooser.now is found


@pytest.mark.parametrize(("is_first", "steps"), [(True, [4, 16, 32, 48, 64]), (False, [1, 16, 32, 48, 64])])
def test_the_first_review_waits_for_measurements_only_where_nothing_is_known(is_first: bool, steps: list[int]) -> None:
    chooser = Chooser(ALL, DEFAULT)
    chooser.begin(ALL, None, is_first=is_first)
    assert [step for step in range(1, 70) if chooser.step(1, ALONE_S, ALONE_S)] == steps
    assert chooser.is_settled
    chooser.review(rates(sequential=20.0), 0.0)
    assert not chooser.is_settled
    assert [step for step in range(1, 20) if chooser.step(1, ALONE_S, ALONE_S)] == [4, 16], "after a change"


# The budget


@pytest.mark.parametrize(("n_steps", "share"), [(1, 2.5), (100, 2.5), (200, 4.0)])
def test_the_first_text_may_spend_in_advance_what_its_time_earns_later(n_steps: int, share: float) -> None:
    chooser = Chooser(ALL, DEFAULT)
    chooser.begin(ALL, None, is_first=True)
    run(chooser, rates(), n_steps)
    assert chooser.budget.credit_s == pytest.approx(share * ALONE_S)


@pytest.mark.parametrize(("carried_s", "credit_s"), [(0.1, 0.1), (-0.1, -0.1), (9.0, ADVANCE_S), (-9.0, -ADVANCE_S)])
def test_credit_is_carried_from_text_to_text_within_limits(carried_s: float, credit_s: float) -> None:
    chooser = Chooser(ALL, DEFAULT)
    chooser.budget.carry(carried_s)
    for n_earlier in (0, 0, 50):  # a text without a step changes nothing
        chooser.begin(ALL, None, is_first=False)
        run(chooser, rates(), n_earlier)
    credit_s += DEFAULT.time_share * 50 * ALONE_S
    assert chooser.budget.carried_s == chooser.budget.credit_s == pytest.approx(credit_s)
    chooser.begin(ALL, None, is_first=False)
    assert chooser.budget.credit_s == pytest.approx(min(credit_s, ADVANCE_S))


def test_before_the_first_step_what_was_carried_is_kept() -> None:
    """Otherwise a run without a step would lose the advance, or forgive a debt."""
    chooser = Chooser(ALL, DEFAULT)
    chooser.begin(ALL, None, is_first=True)
    assert chooser.budget.carried_s is None
    chooser.budget.carry(-0.2)
    assert chooser.budget.carried_s == -0.2


@pytest.mark.parametrize(
    ("schedule", "n_tokens", "seconds", "earned_s"),
    [(SYNC, 3, 0.1, 0.1 * 0.2), (SYNC, 1, 0.3, -0.2), (ASYNC, 1, 0.3, -0.2), (OFF, 1, 0.3, 0.0)],
    ids=["a gain", "a loss", "async", "off"],
)
def test_a_share_of_gains_is_earned_and_losses_are_paid(
    schedule: Schedule, n_tokens: int, seconds: float, earned_s: float
) -> None:
    chooser = following(schedule)
    chooser.step(n_tokens, seconds, ALONE_S)
    assert chooser.budget.credit_s == pytest.approx(DEFAULT.time_share * seconds + earned_s)
    chooser.budget.spend(0.05)
    assert chooser.budget.credit_s == pytest.approx(DEFAULT.time_share * seconds + earned_s - 0.05), (
        "probes are paid too"
    )


@pytest.mark.parametrize(
    ("credit_s", "doubt", "allowed", "then"),
    [
        (-0.1, 0.1, ALL, OFF),
        (0.1, 0.1, ALL, SYNC),  # it has credit
        (-0.1, 0.0, ALL, SYNC),  # it is faster beyond doubt
        (-0.1, 0.1, (SYNC, ASYNC), SYNC),  # there is no other
    ],
)
def test_drafting_without_credit_ends_unless_it_is_faster_beyond_doubt(
    credit_s: float, doubt: float, allowed: tuple[Schedule, ...], then: Schedule
) -> None:
    chooser = following(SYNC, allowed, credit_s=credit_s)
    assert after_review(chooser, rates(sequential=10.5, concurrent=1.0, doubt=doubt)) is then
    assert [change.reason for change in chooser.changes] == ["drafting has used up its credit"] * (then is OFF)


@pytest.mark.parametrize(
    ("credit_s", "doubt", "then"), [(0.1, 0.5, SYNC), (-0.1, 0.15, OFF), (-0.1, 0.1, SYNC), (-0.1, 0.5, OFF)]
)
def test_drafting_begins_without_credit_only_beyond_doubt(credit_s: float, doubt: float, then: Schedule) -> None:
    assert after_review(following(OFF, credit_s=credit_s), rates(sequential=11.9, doubt=doubt)) is then


def test_the_prefill_that_a_change_was_weighed_against_does_not_count_as_a_loss() -> None:
    chooser, outlooks = following(OFF), rates(sequential=12.0, concurrent=1.0, doubt=0.3)
    assert after_review(chooser, outlooks, entry_s=1.0) is SYNC
    chooser.step(1, ALONE_S + 1.0, ALONE_S)
    assert chooser.budget.credit_s < -0.9
    assert after_review(chooser, outlooks) is SYNC
    chooser.step(1, ALONE_S + 0.2, ALONE_S)
    assert after_review(chooser, outlooks) is OFF


# Changes


@pytest.mark.parametrize(
    ("now", "outlooks", "then"),
    [
        (OFF, rates(sequential=10.1), OFF),  # a difference as small as that between two measurements
        (OFF, rates(sequential=10.3), SYNC),
        (SYNC, rates(concurrent=10.3), ASYNC),
        (SYNC, rates(sequential=8.0, concurrent=1.0, doubt=0.3), SYNC),  # it may still be faster
        (SYNC, rates(sequential=8.0, concurrent=1.0, doubt=0.2), OFF),
        (ASYNC, rates(), ASYNC),
    ],
)
def test_a_schedule_changes_only_on_evidence(now: Schedule, outlooks: Outlooks, then: Schedule) -> None:
    assert after_review(following(now), outlooks) is then


def test_a_change_is_recorded_with_its_reason() -> None:
    chooser = following(OFF)
    chooser.review(rates(sequential=20.0), 0.0)
    (change,) = chooser.changes
    assert change == Change(1, SYNC, "20.0 instead of 10.0 tokens/s forecast")


@pytest.mark.parametrize(
    ("now", "n_tokens", "n_room", "entry_s", "then"),
    [
        (OFF, 1, None, 0.99 * SAVED_S, SYNC),
        (OFF, 1, None, 1.01 * SAVED_S, OFF),
        (ASYNC, 1, None, 9 * SAVED_S, SYNC),  # the draft has already decoded the text
        (OFF, 2 * DEFAULT.horizon, None, 1.99 * SAVED_S, SYNC),  # a long text is expected to be half done
        (OFF, 1, DEFAULT.horizon // 2, 0.51 * SAVED_S, OFF),  # a text that is about to end
        (OFF, 1, DEFAULT.horizon // 2, 0.48 * SAVED_S, SYNC),
    ],
)
def test_a_change_must_save_its_prefill_in_the_expected_rest_of_the_text(
    now: Schedule, n_tokens: int, n_room: int | None, entry_s: float, then: Schedule
) -> None:
    chooser = following(now, n_room=n_room)
    chooser.step(n_tokens - 1, 1.0, ALONE_S)
    assert after_review(chooser, rates(sequential=20.0), entry_s) is then


def test_only_allowed_schedules_are_followed() -> None:
    chooser = following(OFF, (ASYNC, OFF))
    run(chooser, rates(concurrent=11.0, sequential=90.0), 100)
    assert [change.schedule for change in chooser.changes] == [ASYNC]


@pytest.mark.parametrize("allowed", [ALL, (ASYNC,), (SYNC,)])
def test_a_draft_that_has_ended_is_not_used_again(allowed: tuple[Schedule, ...]) -> None:
    chooser = following(allowed[0], allowed)
    chooser.give_up()
    assert [(change.n_tokens, change.reason) for change in chooser.changes] == [(1, "the draft has ended")]
    run(chooser, rates(concurrent=90.0, sequential=90.0), 1000)
    chooser.give_up()
    assert (chooser.now, len(chooser.changes)) == (OFF, 1)


@pytest.mark.parametrize(("concurrent", "doubt", "may_gain"), [(8.0, 0.3, True), (8.0, 0.2, False), (1.0, 0.3, False)])
def test_a_draft_may_gain_if_a_schedule_that_is_allowed_may_be_faster(
    concurrent: float, doubt: float, may_gain: bool
) -> None:
    chooser = following(OFF, (ASYNC, OFF))
    assert chooser.may_gain(rates(concurrent, sequential=90.0, doubt=doubt)) is may_gain
