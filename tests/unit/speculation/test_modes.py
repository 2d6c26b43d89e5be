"""The choice among modes. The target alone takes 0.1 s per token."""

import math
from collections.abc import Collection

import pytest

from duo.speculation.constants import DEFAULT
from duo.speculation.modes import ALONE, Budget, Chooser, Mode, RateEstimate, RateEstimates
from tests.unit.speculation.pairs import ASYNC_MODE as ASYNC
from tests.unit.speculation.pairs import SYNC_MODE as SYNC

ALL = (ASYNC, SYNC, ALONE)
ALONE_S = 0.1
SAVED_S = DEFAULT.horizon * (1 / 10 - 1 / 20)  # within the horizon, at 20 instead of 10 tokens/s


def rates(concurrent: float = 10.0, sequential: float = 10.0, off: float = 10.0, doubt: float = 0.0) -> RateEstimates:
    """Forecasts in tokens/s; `doubt`: relative uncertainty of those with a draft."""
    found = {mode: RateEstimate(rate, rate * (1 - doubt), rate * (1 + doubt))
             for mode, rate in ((ASYNC, concurrent), (SYNC, sequential))}  # fmt: skip
    return {**found, ALONE: RateEstimate(off, off, off)}


def begun(
    mode: Mode = ALONE, allowed: tuple[Mode, ...] = ALL, n_room: int | None = None, n_likely: float = DEFAULT.horizon
) -> Chooser:
    chooser = Chooser()
    chooser.begin(allowed, mode, n_room, is_first=False, n_likely=n_likely)
    return chooser


def following(
    mode: Mode, allowed: tuple[Mode, ...] = ALL, n_room: int | None = None, credit_s: float = 0.1,
    n_likely: float = DEFAULT.horizon,
) -> Chooser:  # fmt: skip
    """A chooser that has made 16 tokens in `mode`, as fast as the target alone."""
    chooser = begun(mode, allowed, n_room, n_likely)
    chooser.step(16, 16 * ALONE_S, ALONE_S)
    chooser.budget.spend(chooser.budget.credit_s - credit_s)
    assert chooser.budget.credit_s == pytest.approx(credit_s)
    return chooser


def after_review(
    chooser: Chooser, estimates: RateEstimates, entry_s: float = 0.0, untried: Collection[Mode] = ()
) -> Mode:
    chooser.review(estimates, {"draft": entry_s}, untried)
    return chooser.now


# The first schedule, and when it is reviewed


def test_reviews_become_less_frequent_and_frequent_again_after_a_change() -> None:
    def reviews(n_steps: int) -> list[int]:
        return [step for step in range(1, n_steps) if chooser.step(1, ALONE_S, ALONE_S)]

    chooser = begun()
    assert reviews(70) == [4, 8, 16, 32, 48, 64]
    assert chooser.is_settled
    after_review(chooser, rates(sequential=20.0))
    assert not chooser.is_settled
    assert reviews(20) == [4, 8, 16]


def test_a_draft_on_a_separate_device_is_compared_with_the_text_before_the_first_review_counts() -> None:
    chooser = begun(ASYNC)
    chooser.step(15, 1.5, ALONE_S)
    assert after_review(chooser, rates(concurrent=1.0, sequential=90.0)) is ASYNC
    chooser.step(1, 0.1, ALONE_S)
    assert after_review(chooser, rates(concurrent=1.0, sequential=90.0)) is SYNC


# What is paid


@pytest.mark.parametrize(
    ("mode", "drafted", "steps", "earned_s"),
    [
        (SYNC, True, [(3, 0.1)], 0.2),
        (SYNC, True, [(1, 0.3)], -0.2),
        (ASYNC, True, [(1, 0.3)], -0.2),
        (SYNC, True, [(1, 0.4), (6, 0.1)], 0.2),
        (SYNC, True, [(6, 0.1), (1, 0.8)], -0.2),
        (SYNC, False, [(1, 0.3)], 0.0),
        (ALONE, True, [(1, 0.3)], 0.0),
    ],
)
def test_a_share_of_the_time_and_what_the_draft_gains_are_earned_and_losses_are_paid(
    mode: Mode, drafted: bool, steps: list[tuple[int, float]], earned_s: float
) -> None:
    chooser = following(mode)
    for n_tokens, seconds in steps:
        chooser.step(n_tokens, seconds, ALONE_S, n_tokens * ALONE_S - seconds if drafted else None)
    time_s = sum(seconds for _, seconds in steps)
    assert chooser.budget.credit_s == pytest.approx(0.1 + DEFAULT.time_share * time_s + earned_s)


@pytest.mark.parametrize(
    ("credit_s", "untried", "doubt", "allowed", "then"),
    [
        (-0.1, {SYNC}, 0.1, ALL, ALONE),
        (0.1, {SYNC}, 0.1, ALL, SYNC),  # it has credit
        (-0.1, (), 0.1, ALL, SYNC),  # what is expected was measured, and is clearly faster
        (-0.1, {SYNC}, 0.0, ALL, SYNC),  # it is faster beyond doubt
        (-0.1, {SYNC}, 0.1, (SYNC, ASYNC), SYNC),  # there is no other
    ],
)
def test_a_trial_without_credit_ends_unless_it_is_faster_beyond_doubt(
    credit_s: float, untried: Collection[Mode], doubt: float, allowed: tuple[Mode, ...], then: Mode
) -> None:
    chooser = following(SYNC, allowed, credit_s=credit_s)
    assert after_review(chooser, rates(sequential=10.5, concurrent=1.0, doubt=doubt), untried=untried) is then
    assert [change.reason for change in chooser.changes] == ["drafting has used up its credit"] * (then is ALONE)


# Trials


@pytest.mark.parametrize(
    ("untried", "doubt", "credit_s", "entry_s", "then"),
    [
        ({SYNC}, 0.3, 0.1, 0.0, SYNC),
        ((), 0.3, 0.1, 0.0, ALONE),  # it was measured
        ({ASYNC}, 0.3, 0.1, 0.0, ALONE),  # of the other one nothing good is expected
        ({SYNC}, 0.01, 0.1, 0.0, ALONE),  # it is slower beyond doubt
        ({SYNC}, 0.3, 0.03, 0.0, ALONE),  # 6 steps cost more than the credit: 0.032 s
        ({SYNC}, 0.3, 0.1, 0.07, ALONE),  # and with the prefill
        ({SYNC}, 0.3, 0.1, 0.06, SYNC),
    ],
)
def test_what_may_be_faster_is_tried_if_the_credit_covers_it(
    untried: Collection[Mode], doubt: float, credit_s: float, entry_s: float, then: Mode
) -> None:
    chooser, estimates = following(ALONE, credit_s=credit_s), rates(sequential=9.5, concurrent=1.0, doubt=doubt)
    assert after_review(chooser, estimates, entry_s, untried) is then


def test_the_trial_that_is_worth_most_is_made_first_and_each_once_in_a_text() -> None:
    chooser = following(ALONE, credit_s=9.0)
    estimates, bad = rates(sequential=9.5, concurrent=9.8, doubt=0.2), rates(1.0, 1.0)
    assert after_review(chooser, estimates, untried={SYNC, ASYNC}) is ASYNC
    assert after_review(chooser, bad) is ALONE
    assert after_review(chooser, estimates, untried={SYNC, ASYNC}) is SYNC
    assert after_review(chooser, bad) is ALONE
    assert after_review(chooser, estimates, untried={SYNC, ASYNC}) is ALONE
    assert chooser.changes[0].reason == "a trial: 7.8 to 11.8 instead of 10.0 tokens/s forecast"
    chooser.begin(ALL, ALONE, None, is_first=False, n_likely=DEFAULT.horizon)
    chooser.step(1, ALONE_S, ALONE_S)
    assert after_review(chooser, estimates, untried={SYNC, ASYNC}) is ASYNC


# Changes


@pytest.mark.parametrize(
    ("now", "estimates", "then"),
    [
        (ALONE, rates(sequential=10.1), ALONE),  # a difference as small as that between two measurements
        (ALONE, rates(sequential=10.3), SYNC),
        (SYNC, rates(concurrent=10.3), ASYNC),
        (SYNC, rates(sequential=8.0, concurrent=1.0, doubt=0.3), ALONE),
        (ASYNC, rates(off=9.9), ASYNC),
        (SYNC, rates(doubt=0.3), ALONE),  # it drafts nothing
    ],
)
def test_a_mode_changes_only_on_evidence(now: Mode, estimates: RateEstimates, then: Mode) -> None:
    assert after_review(following(now), estimates) is then


@pytest.mark.parametrize(
    ("now", "n_tokens", "n_room", "entry_s", "then"),
    [
        (ALONE, 16, None, 0.99 * SAVED_S, SYNC),
        (ALONE, 16, None, 1.01 * SAVED_S, ALONE),
        (ASYNC, 16, None, 9 * SAVED_S, SYNC),  # the draft has already decoded the text
        (ALONE, 2 * DEFAULT.horizon, None, 1.99 * SAVED_S, SYNC),  # a long text is expected to be half done
        (ALONE, 16, 16 + DEFAULT.horizon // 2, 0.51 * SAVED_S, ALONE),  # a text that is about to end
        (ALONE, 16, 16 + DEFAULT.horizon // 2, 0.49 * SAVED_S, SYNC),
    ],
)
def test_a_change_must_save_its_prefill_in_the_expected_rest_of_the_text(
    now: Mode, n_tokens: int, n_room: int | None, entry_s: float, then: Mode
) -> None:
    chooser = following(now, n_room=n_room)
    chooser.step(n_tokens - 16, 0.0, ALONE_S)
    assert after_review(chooser, rates(sequential=20.0), entry_s) is then


@pytest.mark.parametrize(
    ("now", "share", "then"),
    [
        (ALONE, 0.88, SYNC),  # 18 tokens/s, half-way from 20 to 16, save eight ninths
        (ALONE, 0.9, ALONE),
        (ASYNC, 9.0, SYNC),  # nothing is paid
    ],
)
def test_a_prefill_must_be_saved_even_if_what_was_seen_of_the_draft_was_luck(
    now: Mode, share: float, then: Mode
) -> None:
    assert after_review(following(now), rates(sequential=20.0, doubt=0.2), share * SAVED_S) is then


@pytest.mark.parametrize(("n_tokens", "share", "then"), [(16, 0.24, SYNC), (16, 0.26, ALONE), (128, 0.49, SYNC)])
def test_where_texts_are_short_a_change_must_save_its_prefill_in_as_many_tokens(
    n_tokens: int, share: float, then: Mode
) -> None:
    """Or in as many as this one has, if it is already longer."""
    chooser = following(ALONE, n_likely=DEFAULT.horizon / 4)
    chooser.step(n_tokens - 16, 0.0, ALONE_S)
    assert after_review(chooser, rates(sequential=20.0), share * SAVED_S) is then


@pytest.mark.parametrize(
    ("is_first", "n_room", "tokens"),
    [(True, None, 9.5), (False, None, 2.0), (True, 4096, 9.5), (True, 100, 4.0), (False, 25, 1.0), (False, 50, 2.0)],
)
def test_a_text_begins_with_tokens_at_most_a_share_of_a_limited_one_and_once_counts_as_the_first(
    is_first: bool, n_room: int | None, tokens: float
) -> None:
    """That is if what was known before is wrong."""
    budget = Budget(DEFAULT.first, DEFAULT.later)
    budget.begin(n_room, is_first=is_first)
    budget.step(0.0, 0.0, ALONE_S)
    assert budget.credit_s == pytest.approx(tokens * ALONE_S)
    budget.spend(0.1)
    for _ in range(3):
        budget.begin_again()
        assert budget.credit_s == pytest.approx(min(9.5, 0.04 * (n_room or math.inf)) * ALONE_S - 0.1)
