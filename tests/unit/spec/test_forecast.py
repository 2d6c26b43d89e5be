import itertools
import random
from collections.abc import Callable

import pytest

from duo.spec.forecast import Forecast, alone, limit, overlapped, taking_turns
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.simulate import Machine, constant, replay
from tests.unit.spec.machines import APART, N_AHEAD, N_MAX, TWO_CORES, Case, random_case
from tests.unit.spec.renewal import Fixed, best_fixed, expected, fixed_rate, turns_rate

CASES = [random_case(seed) for seed in range(60)]
USUAL = [case for case in CASES if case.machine.beside_draft_s < 0.95 * case.machine.beside_target_s[0]]
SLOW_DRAFTS = [case for case in CASES if case not in USUAL]


def forecast(case: Case) -> Forecast:
    machine = case.machine
    return overlapped(machine.beside_target_s, machine.beside_draft_s, case.acceptance, N_AHEAD)


def test_alone_a_step_writes_one_token() -> None:
    assert alone([0.25, 0.3]) == Forecast(4.0)


@pytest.mark.parametrize("seed", range(12))
def test_taking_turns_finds_the_best_number_of_candidates(seed: int) -> None:
    case = random_case(seed)
    machine, acceptance = case.machine, case.acceptance
    rates = {0: 1 / machine.target_s[0]}
    for k in range(1, N_MAX + 1):
        drafting_s = (k + acceptance**k) * machine.draft_s  # it reads the last one too when all were accepted
        rates[k] = expected(acceptance, k) / (drafting_s + machine.target_s[k])
    best = max(rates, key=rates.__getitem__)
    found = taking_turns(machine.target_s, machine.draft_s, acceptance)
    assert found.rate == pytest.approx(rates[best])
    assert found.n_verify == found.n_wait == best


def test_taking_turns_with_a_hopeless_or_slow_draft_is_not_worth_it() -> None:
    assert taking_turns(APART.target_s, 0.025, 0.0) == alone(APART.target_s)
    assert taking_turns(APART.target_s, 0.6, 0.9) == alone(APART.target_s)


@pytest.mark.parametrize("machine", [APART, TWO_CORES], ids=["apart", "two cores"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_formula_for_taking_turns_comes_true(machine: Machine, k: int) -> None:
    found = replay(Fixed(k, k, Schedule.SYNC), machine, constant(0.8), 20_000)
    assert found.rate == pytest.approx(turns_rate(machine, 0.8, k), rel=0.02)


@pytest.mark.parametrize(("k", "wait"), [(0, 0), (1, 1), (3, 1), (4, 0), (6, 4), (8, 8)])
def test_the_formula_for_fixed_settings_comes_true(k: int, wait: int) -> None:
    assert replay(Fixed(k, wait), APART, constant(0.8), 20_000).rate == pytest.approx(
        fixed_rate(APART, 0.8, k, wait), rel=0.02
    )


def test_the_formula_for_fixed_settings_comes_true_on_any_machine() -> None:
    dice = random.Random(0)
    for case in USUAL[:20]:
        k = dice.randint(1, N_MAX)
        wait = dice.randint(0, k)
        found = replay(Fixed(k, wait), case.machine, constant(case.acceptance), 20_000).rate
        assert found == pytest.approx(fixed_rate(case.machine, case.acceptance, k, wait), rel=0.02)


def test_overlapped_is_at_least_as_good_as_every_fixed_setting() -> None:
    for case in USUAL:
        assert forecast(case).rate >= 0.995 * best_fixed(case.machine, case.acceptance)[0]


def test_overlapped_is_never_slower_than_the_target_beside_an_idle_draft() -> None:
    for case in SLOW_DRAFTS:
        assert forecast(case).rate >= 0.995 / case.machine.beside_target_s[0]


def test_overlapped_promises_what_the_policy_reaches() -> None:
    for case in USUAL[:12]:
        found = replay(Policy(N_MAX, N_AHEAD, (Schedule.ASYNC,)), case.machine, constant(case.acceptance), 5000).rate
        assert forecast(case).rate <= 1.06 * found


def test_overlapped_without_candidates_is_the_target_alone() -> None:
    assert overlapped([0.02], 0.01, 0.8, N_AHEAD).rate == pytest.approx(50)
    hopeless = overlapped(APART.target_s, 0.025, 0.0, N_AHEAD)
    assert hopeless.rate == pytest.approx(1 / 0.49)
    assert (hopeless.n_verify, hopeless.n_wait) == (0, 0)


def test_overlapped_with_a_perfect_draft_is_as_fast_as_the_draft_or_the_largest_batch() -> None:
    flat = [0.1] * 9
    assert overlapped(flat, 0.05, 1.0, N_AHEAD).rate == pytest.approx(1 / 0.05, rel=0.02)
    assert overlapped(flat, 0.001, 1.0, N_AHEAD).rate == pytest.approx(9 / 0.1, rel=0.06)


def overlapped_rate(machine: Machine, draft_s: float, acceptance: float) -> float:
    return overlapped(machine.beside_target_s, draft_s, acceptance, N_AHEAD).rate


def taking_turns_rate(machine: Machine, draft_s: float, acceptance: float) -> float:
    return taking_turns(machine.target_s, draft_s, acceptance).rate


def limit_rate(machine: Machine, draft_s: float, acceptance: float) -> float:
    return limit(machine.target_s, draft_s, acceptance)


@pytest.mark.parametrize("foresee", [overlapped_rate, taking_turns_rate, limit_rate])
def test_a_better_or_faster_draft_is_never_forecast_to_be_slower(
    foresee: Callable[[Machine, float, float], float],
) -> None:
    for case in CASES[:20]:
        machine = case.machine
        better = [foresee(machine, machine.draft_s, share / 10) for share in range(11)]
        faster = [foresee(machine, machine.draft_s / factor, case.acceptance) for factor in (1, 1.5, 2, 4)]
        for rates in (better, faster):
            assert all(high >= 0.995 * low for low, high in itertools.pairwise(rates))


def test_a_larger_lead_is_worth_more_and_a_fresh_start_nothing() -> None:
    found = overlapped(APART.target_s, APART.draft_s, 0.8, N_AHEAD)
    worths = [found.worth_of(lead / 2) for lead in range(-2, 2 * N_AHEAD + 1)]
    # Linear algebra differs in the last bits between processors.
    assert all(high > low - 1e-9 for low, high in itertools.pairwise(worths))
    assert found.worth_of(0) == pytest.approx(0)
    assert found.worth_of(-9) == worths[0] < 0 < worths[-1] == found.worth_of(99)


def test_no_lead_is_worth_anything_where_none_outlives_a_step() -> None:
    assert taking_turns(APART.target_s, APART.draft_s, 0.8).worth_of(3) == 0


def test_nothing_exceeds_the_limit() -> None:
    for case in CASES[:20]:
        machine = case.machine
        for schedule, curve, draft_s in (
            (Schedule.ASYNC, machine.beside_target_s, machine.beside_draft_s),
            (Schedule.SYNC, machine.target_s, machine.draft_s),
        ):
            found = replay(Policy(N_MAX, N_AHEAD, (schedule,)), machine, constant(case.acceptance), 5000).rate
            assert found <= 1.03 * limit(curve, draft_s, case.acceptance)


def test_the_limit_is_the_draft_or_the_best_batch() -> None:
    assert limit([0.1, 0.11], 0.05, 1.0) == pytest.approx(2 / 0.11), "the best batch"
    assert limit([0.1, 0.11], 0.08, 1.0) == pytest.approx(1 / 0.08), "the draft"
    assert limit([0.1, 0.25], 0.2, 1.0) == pytest.approx(1 / 0.1), "the target alone"


@pytest.mark.parametrize("seed", range(20))
def test_the_further_away_the_draft_the_lower_the_rate(seed: int) -> None:
    machine, acceptance = CASES[seed].machine, CASES[seed].acceptance
    rates = [
        overlapped(machine.beside_target_s, machine.beside_draft_s, acceptance, N_AHEAD, latency_s).rate
        for latency_s in (0.0, machine.beside_draft_s, 4 * machine.beside_draft_s, 16 * machine.beside_draft_s)
    ]
    falls = all(near > (1 - 1e-9) * far for near, far in itertools.pairwise(rates))
    assert falls or max(rates) < 1.001 * min(rates)
    assert min(rates) >= 0.999 / machine.beside_target_s[0], "the target alone is always there"


def test_a_draft_that_is_far_away_is_behind_after_a_rejection() -> None:
    near = overlapped(APART.target_s, 0.025, 0.8, N_AHEAD)
    far = overlapped(APART.target_s, 0.025, 0.8, N_AHEAD, 0.1)
    assert (near.behind, far.behind) == (1, 5)
    assert far.worth_of(-4) == pytest.approx(0.0, abs=1e-6), "so a cycle begins"
    assert far.worth_of(0) > 0.1
