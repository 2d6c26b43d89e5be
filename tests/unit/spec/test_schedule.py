import itertools

import pytest

from duo.spec.schedule import ALL, Chooser, Schedule

ASYNC, SYNC, OFF = Schedule.ASYNC, Schedule.SYNC, Schedule.OFF
Rates = dict[Schedule, float]


SAVED_S = 128 * (1 / 10 - 1 / 20)  # over 128 tokens at 20 instead of 10 tokens/s


def rates(beside: float = 10.0, turns: float = 10.0, off: float = 10.0) -> Rates:
    """Forecasts in tokens/s."""
    return {ASYNC: beside, SYNC: turns, OFF: off}


def following(schedule: Schedule, allowed: tuple[Schedule, ...] = ALL) -> Chooser:
    """A chooser that follows `schedule` because an earlier run says so."""
    chooser = Chooser(allowed)
    chooser.begin({s: 20.0 if s is schedule else 10.0 for s in ALL}, 0.0, None)
    assert chooser.now is schedule
    return chooser


def run(chooser: Chooser, forecast: Rates, n_steps: int, actual: Rates | None = None) -> tuple[float, float]:
    """Go on for `n_steps` steps of one token, with such forecasts. Seconds in all, and those lost in trials."""
    seconds = lost = 0.0
    best_s = 1 / max((actual or forecast).values())
    for _ in range(n_steps):
        step_s = 1 / (actual or forecast)[chooser.now]
        seconds += step_s
        if chooser.changes and chooser.changes[-1].reason == "a trial":
            lost += step_s - best_s
        if chooser.step(1, step_s):
            chooser.review(forecast, 0.0)
    return seconds, lost


@pytest.mark.parametrize(
    ("allowed", "first"), [(ALL, SYNC), ((ASYNC, OFF), ASYNC), ((OFF, SYNC), SYNC), ((OFF,), OFF), ((ASYNC,), ASYNC)]
)
def test_begins_with_what_tells_most_about_both_models(allowed: tuple[Schedule, ...], first: Schedule) -> None:
    chooser = Chooser(allowed)
    chooser.begin({}, 1.0, None)
    assert chooser.now is first


@pytest.mark.parametrize("best", ALL)
def test_begins_with_what_an_earlier_run_says(best: Schedule) -> None:
    assert following(best).now is best


@pytest.mark.parametrize(("told", "followed"), [(False, OFF), (True, ASYNC)])
def test_what_is_only_hoped_for_has_to_be_worth_more(told: bool, followed: Schedule) -> None:
    """Five percent: enough once the text has told how often the draft is right, not before."""
    chooser = Chooser(ALL)
    chooser.begin(rates(beside=10.5), 0.0, None)
    assert chooser.now is OFF
    chooser.review(rates(beside=10.5), 0.0, told=told)
    assert chooser.now is followed


@pytest.mark.parametrize(("entry_s", "first"), [(0.99 * SAVED_S / 3, ASYNC), (1.01 * SAVED_S / 3, OFF)])
def test_begins_with_the_draft_only_if_it_saves_three_times_what_reading_the_prompt_costs(
    entry_s: float, first: Schedule
) -> None:
    chooser = Chooser(ALL)
    chooser.begin(rates(beside=20.0), entry_s, None)
    assert chooser.now is first


def test_never_takes_a_schedule_that_is_not_allowed() -> None:
    chooser = Chooser((ASYNC, OFF))
    chooser.begin(rates(turns=90.0), 0.0, None)
    assert run(chooser, rates(turns=90.0), 2000)
    assert all(change.schedule is not SYNC for change in chooser.changes)


def test_changes_only_with_a_margin() -> None:
    chooser = following(SYNC)
    chooser.review(rates(off=10.2), 0.0)
    assert chooser.now is SYNC
    chooser.step(1, 0.1)
    chooser.review(rates(off=10.4), 0.0)
    assert chooser.now is OFF
    assert [(change.n_tokens, change.schedule) for change in chooser.changes] == [(1, OFF)]
    assert chooser.changes[0].reason == "10.4 instead of 10.0 tokens/s forecast"


@pytest.mark.parametrize(("entry_s", "then"), [(0.99 * SAVED_S / 3, SYNC), (1.01 * SAVED_S / 3, OFF)])
def test_takes_up_drafting_only_if_it_saves_three_times_what_reading_the_text_costs(
    entry_s: float, then: Schedule
) -> None:
    chooser = following(OFF)
    chooser.review(rates(turns=20.0), entry_s)
    assert chooser.now is then


def test_what_a_change_costs_matters_less_in_a_long_text() -> None:
    chooser = following(OFF)
    chooser.step(1000, 100.0)
    chooser.review(rates(turns=20.0), 0.99 * SAVED_S / 3 * 1000 / 128)
    assert chooser.now is SYNC


@pytest.mark.parametrize(("n_room", "then"), [(70, OFF), (90, SYNC)])
def test_what_a_change_costs_matters_more_when_the_text_is_about_to_end(n_room: int, then: Schedule) -> None:
    """After 30 of 70 or 90 tokens 40 or 60 are left, of the 128 that are looked ahead otherwise."""
    chooser = Chooser(ALL)
    chooser.begin(rates(off=20.0), 0.0, n_room)
    chooser.step(30, 1.0)
    chooser.review(rates(turns=20.0), SAVED_S / 3 * 50 / 128)
    assert chooser.now is then


def test_leaving_a_schedule_with_a_draft_costs_nothing() -> None:
    chooser = following(SYNC)
    chooser.review(rates(beside=20.0), 1000.0)
    assert chooser.now is ASYNC


def test_reviews_often_after_a_change_and_then_every_sixteen_steps() -> None:
    chooser = Chooser((OFF,))
    reviewed = [step for step in range(1, 70) if chooser.step(1, 0.1)]
    assert reviewed == [3, 6, 12, 16, 32, 48, 64]


def test_what_was_not_followed_for_long_is_tried_and_left_again() -> None:
    chooser = following(SYNC)
    run(chooser, rates(beside=9.5, off=9.0), 400)
    assert [(change.schedule, change.reason == "a trial") for change in chooser.changes[:2]] == [
        (ASYNC, True),
        (SYNC, False),
    ]
    assert chooser.changes[0].n_tokens >= Chooser.STALE_STEPS
    assert chooser.changes[1].n_tokens <= chooser.changes[0].n_tokens + 3


def test_a_trial_that_turns_out_well_is_kept_without_a_margin() -> None:
    chooser = following(SYNC)
    while chooser.now is SYNC:
        run(chooser, rates(beside=9.9, off=9.0), 1)
    run(chooser, rates(beside=10.1, off=9.0), 100)
    assert chooser.now is ASYNC


def test_trials_get_rarer() -> None:
    chooser = following(SYNC, (SYNC, OFF))
    run(chooser, rates(off=9.9), 10_000)
    trials = [change.n_tokens for change in chooser.changes if change.reason == "a trial"]
    pauses = [later - earlier for earlier, later in itertools.pairwise([0, *trials])]
    assert len(pauses) >= 6
    assert all(later > 1.7 * earlier for earlier, later in itertools.pairwise(pauses))


@pytest.mark.parametrize("others", [9.9, 9.0, 5.0, 1.0, 0.1])
def test_trials_cost_no_more_than_their_share_of_the_time(others: float) -> None:
    chooser = following(ASYNC)
    seconds, lost = run(chooser, rates(turns=others, off=others), 5000)
    assert lost <= Chooser.BUDGET_SHARE * seconds


def test_a_trial_that_the_budget_does_not_allow_waits_until_it_does() -> None:
    """At 1 instead of 10 tokens/s, 12 tokens lose 10.8 s: that is 1.5 % of 720 s."""
    chooser = following(ASYNC, (ASYNC, SYNC))
    forecast = rates(turns=1.0, off=1.0)
    run(chooser, forecast, 6900)
    assert not chooser.changes
    run(chooser, forecast, 500)
    assert chooser.changes[0].schedule is SYNC


def test_a_trial_of_a_draft_has_to_be_paid_with_what_reading_the_text_costs() -> None:
    """1.5 % of the time of 2000 tokens at 10 tokens/s is 3 s."""
    for entry_s, tried in ((4.0, False), (2.0, True)):
        chooser = following(OFF)
        for _ in range(2000):
            if chooser.step(1, 0.1):
                chooser.review(rates(turns=9.99, beside=1.0), entry_s)
        assert any(change.reason == "a trial" for change in chooser.changes) is tried


@pytest.mark.parametrize("allowed", [ALL, (ASYNC,), (SYNC,)])
def test_a_draft_that_has_ended_is_given_up_for_good(allowed: tuple[Schedule, ...]) -> None:
    chooser = following(allowed[0], allowed)
    chooser.step(7, 1.0)
    chooser.give_up()
    assert chooser.now is OFF
    assert [(change.n_tokens, change.reason) for change in chooser.changes] == [(7, "the draft has ended")]
    run(chooser, rates(off=1.0), 1000)
    assert chooser.now is OFF
    chooser.give_up()
    assert len(chooser.changes) == 1
