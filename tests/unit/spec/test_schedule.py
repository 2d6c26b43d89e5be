from itertools import pairwise

import pytest

from duo.spec.schedule import ALL, Chooser, Schedule

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF
Rates = dict[Schedule, float]

SAVED_S = 128 * (1 / 10 - 1 / 20)  # over 128 tokens at 20 instead of 10 tokens/s


def rates(concurrent: float = 10.0, sequential: float = 10.0, off: float = 10.0) -> Rates:
    """Forecasts in tokens/s."""
    return {ASYNC: concurrent, SYNC: sequential, OFF: off}


def following(schedule: Schedule, allowed: tuple[Schedule, ...] = ALL, n_room: int | None = None) -> Chooser:
    """A chooser that follows `schedule` because an earlier run says so."""
    chooser = Chooser(allowed)
    chooser.begin({s: 20.0 if s is schedule else 10.0 for s in ALL}, 0.0, n_room)
    assert chooser.now is schedule
    return chooser


def run(chooser: Chooser, forecast: Rates, n_steps: int, entry_s: float = 0.0) -> tuple[float, float]:
    """Continue for `n_steps` steps of one token. Seconds in all, and those lost in trials."""
    seconds = lost = 0.0
    best_s = 1 / max(forecast.values())
    for _ in range(n_steps):
        step_s = 1 / forecast[chooser.now]
        seconds += step_s
        if chooser.changes and chooser.changes[-1].reason == "a trial":
            lost += step_s - best_s
        if chooser.step(1, step_s):
            chooser.review(forecast, entry_s)
    return seconds, lost


def trials(chooser: Chooser) -> list[int]:
    """Tokens that there were at each trial."""
    return [change.n_tokens for change in chooser.changes if change.reason == "a trial"]


# The first schedule


@pytest.mark.parametrize(
    ("allowed", "first"), [(ALL, SYNC), ((ASYNC, OFF), ASYNC), ((OFF, SYNC), SYNC), ((OFF,), OFF), ((ASYNC,), ASYNC)]
)
def test_first_run_begins_with_the_schedule_that_measures_most_and_later_runs_with_the_best(
    allowed: tuple[Schedule, ...], first: Schedule
) -> None:
    chooser = Chooser(allowed)
    chooser.begin({}, 1.0, None)
    assert chooser.now is first
    for best in allowed:
        following(best, allowed)


@pytest.mark.parametrize(("told", "followed"), [(False, OFF), (True, ASYNC)])
def test_a_gain_of_five_percent_is_enough_once_acceptance_is_known(told: bool, followed: Schedule) -> None:
    chooser = Chooser(ALL)
    chooser.begin(rates(concurrent=10.5), 0.0, None)
    assert chooser.now is OFF
    chooser.review(rates(concurrent=10.5), 0.0, scored=told)
    assert chooser.now is followed


# Changes


@pytest.mark.parametrize(("entry_s", "then"), [(0.99 * SAVED_S / 3, ASYNC), (1.01 * SAVED_S / 3, OFF)])
def test_drafting_begins_only_if_it_saves_three_times_its_prefill(entry_s: float, then: Schedule) -> None:
    first = Chooser(ALL)
    first.begin(rates(concurrent=20.0), entry_s, None)
    later = following(OFF)
    later.review(rates(concurrent=20.0), entry_s)
    assert first.now is later.now is then


@pytest.mark.parametrize(
    ("n_room", "n_tokens", "entry_tokens", "then"),
    [
        (None, 1000, 990, SYNC),  # a long text: as many tokens as it has
        (70, 30, 50, OFF),  # the text is about to end
        (90, 30, 50, SYNC),
    ],
)
def test_prefill_is_weighed_against_the_expected_rest_of_the_text(
    n_room: int | None, n_tokens: int, entry_tokens: int, then: Schedule
) -> None:
    chooser = following(OFF, n_room=n_room)
    chooser.step(n_tokens, 1.0)
    chooser.review(rates(sequential=20.0), SAVED_S / 3 * entry_tokens / 128)
    assert chooser.now is then


def test_a_schedule_changes_only_with_a_margin() -> None:
    chooser = following(SYNC)
    chooser.review(rates(off=10.2), 0.0)
    assert chooser.now is SYNC
    chooser.step(1, 0.1)
    chooser.review(rates(off=10.4), 0.0)
    assert chooser.now is OFF
    assert [(change.n_tokens, change.schedule) for change in chooser.changes] == [(1, OFF)]
    assert chooser.changes[0].reason == "10.4 instead of 10.0 tokens/s forecast"
    sequential = following(SYNC)
    sequential.review(rates(concurrent=20.0), 1000.0)
    assert sequential.now is ASYNC, "between schedules with a draft there is no prefill"


def test_only_allowed_schedules_are_followed() -> None:
    chooser = Chooser((ASYNC, OFF))
    chooser.begin(rates(sequential=90.0), 0.0, None)
    run(chooser, rates(sequential=90.0), 2000)
    assert all(change.schedule is not SYNC for change in chooser.changes)


def test_reviews_follow_a_change_soon_and_then_every_sixteen_steps() -> None:
    chooser = Chooser((OFF,))
    assert [step for step in range(1, 70) if chooser.step(1, 0.1)] == [3, 6, 12, 16, 32, 48, 64]


@pytest.mark.parametrize("allowed", [ALL, (ASYNC,), (SYNC,)])
def test_a_draft_that_has_ended_is_not_used_again(allowed: tuple[Schedule, ...]) -> None:
    chooser = following(allowed[0], allowed)
    chooser.step(7, 1.0)
    chooser.give_up()
    assert [(change.n_tokens, change.reason) for change in chooser.changes] == [(7, "the draft has ended")]
    run(chooser, rates(off=1.0), 1000)
    chooser.give_up()
    assert (chooser.now, len(chooser.changes)) == (OFF, 1)


# Trials


def test_a_schedule_not_followed_for_long_is_tried_briefly() -> None:
    chooser = following(SYNC)
    run(chooser, rates(concurrent=9.5, off=9.0), 400)
    first, second = chooser.changes[:2]
    assert (first.schedule, first.reason, second.schedule) == (ASYNC, "a trial", SYNC)
    assert Chooser.STALE_STEPS <= first.n_tokens < second.n_tokens <= first.n_tokens + 3


def test_a_successful_trial_needs_no_margin() -> None:
    chooser = following(SYNC)
    while chooser.now is SYNC:
        run(chooser, rates(concurrent=9.9, off=9.0), 1)
    run(chooser, rates(concurrent=10.1, off=9.0), 100)
    assert chooser.now is ASYNC


def test_trials_become_rarer() -> None:
    chooser = following(SYNC, (SYNC, OFF))
    run(chooser, rates(off=9.9), 10_000)
    pauses = [later - earlier for earlier, later in pairwise([0, *trials(chooser)])]
    assert len(pauses) >= 6
    assert all(later > 1.7 * earlier for earlier, later in pairwise(pauses))


@pytest.mark.parametrize("others", [9.9, 5.0, 0.1])
def test_trials_cost_no_more_than_their_share_of_the_time(others: float) -> None:
    seconds, lost = run(following(ASYNC), rates(sequential=others, off=others), 5000)
    assert lost <= Chooser.BUDGET_SHARE * seconds


def test_a_trial_waits_until_the_budget_allows_it() -> None:
    """At 1 instead of 10 tokens/s, 12 tokens lose 10.8 s: that is 1.5 % of 720 s."""
    chooser = following(ASYNC, (ASYNC, SYNC))
    run(chooser, rates(sequential=1.0, off=1.0), 6900)
    assert not chooser.changes
    run(chooser, rates(sequential=1.0, off=1.0), 500)
    assert chooser.changes[0].schedule is SYNC


@pytest.mark.parametrize(("entry_s", "tried"), [(4.0, False), (2.0, True)])
def test_the_prefill_of_a_trial_is_paid_from_the_budget(entry_s: float, tried: bool) -> None:
    """1.5 % of the time of 2000 tokens at 10 tokens/s is 3 s."""
    chooser = following(OFF)
    run(chooser, rates(sequential=9.99, concurrent=1.0), 2000, entry_s)
    assert bool(trials(chooser)) is tried
