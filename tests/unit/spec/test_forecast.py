from collections.abc import Callable
from itertools import pairwise

import pytest

from duo.spec.forecast import Forecast, alone, limit, overlapped, taking_turns
from duo.spec.simulate import Machine
from tests.unit.spec.machines import (
    APART,
    N_AHEAD,
    N_MAX,
    Case,
    best_concurrent,
    expected,
    random_case,
)

CASES = [random_case(seed) for seed in range(40)]
FAST = [case for case in CASES if case.machine.beside_draft_s < 0.95 * case.machine.beside_target_s[0]]
SLOW = [case for case in CASES if case not in FAST]


def concurrent(case: Case, latency_s: float = 0.0) -> Forecast:
    machine = case.machine
    return overlapped(machine.beside_target_s, machine.beside_draft_s, case.acceptance, N_AHEAD, latency_s)


def test_the_limit_is_the_draft_the_best_batch_or_the_target_alone() -> None:
    assert limit([0.1, 0.11], 0.05, 1.0) == pytest.approx(2 / 0.11), "the best batch"
    assert limit([0.1, 0.11], 0.08, 1.0) == pytest.approx(1 / 0.08), "the draft"
    assert limit([0.1, 0.25], 0.2, 1.0) == pytest.approx(1 / 0.1), "the target alone"


@pytest.mark.parametrize("case", CASES[:12])
def test_sequential_forecast_finds_the_best_number_of_candidates(case: Case) -> None:
    machine, acceptance = case.machine, case.acceptance
    rates = {0: 1 / machine.target_s[0]}
    for k in range(1, N_MAX + 1):
        drafting_s = (k + acceptance**k) * machine.draft_s  # it decodes the last one too when all were accepted
        rates[k] = expected(acceptance, k) / (drafting_s + machine.target_s[k])
    best = max(rates, key=rates.__getitem__)
    found = taking_turns(machine.target_s, machine.draft_s, acceptance)
    assert found.rate == pytest.approx(rates[best])
    assert found.n_verify == found.n_wait == best
    assert found.worth_of(3) == 0, "no lead outlives a step"


def test_concurrent_forecast_is_at_least_as_good_as_every_fixed_setting() -> None:
    for case in FAST:
        assert concurrent(case).rate >= 0.995 * best_concurrent(case.machine, case.acceptance)[0]


def test_concurrent_forecast_is_never_below_the_target_beside_an_idle_draft() -> None:
    for case in SLOW:
        assert concurrent(case).rate >= 0.995 / case.machine.beside_target_s[0]


def test_forecasts_without_gain_are_the_target_alone() -> None:
    assert alone([0.25, 0.3]) == Forecast(4.0)
    for draft_s, acceptance in ((0.025, 0.0), (0.6, 0.9)):
        assert taking_turns(APART.target_s, draft_s, acceptance) == alone(APART.target_s)
    assert overlapped([0.02], 0.01, 0.8, N_AHEAD).rate == pytest.approx(50)
    never_right = overlapped(APART.target_s, 0.025, 0.0, N_AHEAD)
    assert never_right.rate == pytest.approx(1 / 0.49)
    assert (never_right.n_verify, never_right.n_wait) == (0, 0)


def test_concurrent_forecast_of_a_perfect_draft_is_the_draft_or_the_largest_batch() -> None:
    flat = [0.1] * 9
    assert overlapped(flat, 0.05, 1.0, N_AHEAD).rate == pytest.approx(1 / 0.05, rel=0.02)
    assert overlapped(flat, 0.001, 1.0, N_AHEAD).rate == pytest.approx(9 / 0.1, rel=0.06)


Foresee = Callable[[Machine, float, float], float]
FORESEE: dict[str, Foresee] = {
    "concurrent": lambda machine, draft_s, share: overlapped(machine.beside_target_s, draft_s, share, N_AHEAD).rate,
    "sequential": lambda machine, draft_s, share: taking_turns(machine.target_s, draft_s, share).rate,
    "limit": lambda machine, draft_s, share: limit(machine.target_s, draft_s, share),
}


@pytest.mark.parametrize("foresee", FORESEE.values(), ids=FORESEE)
def test_a_better_or_faster_draft_is_never_forecast_to_be_slower(foresee: Foresee) -> None:
    for case in CASES[:20]:
        machine = case.machine
        better = [foresee(machine, machine.draft_s, share / 10) for share in range(11)]
        faster = [foresee(machine, machine.draft_s / factor, case.acceptance) for factor in (1, 1.5, 2, 4)]
        for rates in (better, faster):
            assert all(high >= 0.995 * low for low, high in pairwise(rates))


def test_a_larger_lead_is_worth_more_and_a_fresh_start_nothing() -> None:
    found = overlapped(APART.target_s, APART.draft_s, 0.8, N_AHEAD)
    worths = [found.worth_of(lead / 2) for lead in range(-2, 2 * N_AHEAD + 1)]
    # Linear algebra differs in the last bits between processors.
    assert all(high > low - 1e-9 for low, high in pairwise(worths))
    assert found.worth_of(0) == pytest.approx(0)
    assert found.worth_of(-9) == worths[0] < 0 < worths[-1] == found.worth_of(99)


@pytest.mark.parametrize("case", CASES[:20])
def test_latency_lowers_the_rate_to_that_of_the_target_alone_at_worst(case: Case) -> None:
    draft_s = case.machine.beside_draft_s
    rates = [concurrent(case, factor * draft_s).rate for factor in (0, 1, 4, 16)]
    falls = all(near > (1 - 1e-9) * far for near, far in pairwise(rates))
    assert falls or max(rates) < 1.001 * min(rates)
    assert min(rates) >= 0.999 / case.machine.beside_target_s[0]


def test_with_latency_a_cycle_begins_behind_the_target() -> None:
    near = overlapped(APART.target_s, 0.025, 0.8, N_AHEAD)
    far = overlapped(APART.target_s, 0.025, 0.8, N_AHEAD, 0.1)
    assert (near.behind, far.behind) == (1, 5)
    assert far.worth_of(-4) == pytest.approx(0.0, abs=1e-6)
    assert far.worth_of(0) > 0.1
