"""Replays, and the policy on machines of known costs."""

from dataclasses import replace
from functools import cache
from statistics import median

import pytest

from duo.spec.calibration import Lookahead
from duo.spec.pair import PairModel
from duo.spec.policy import Decision, Policy, StepCost
from duo.spec.schedule import ALL, Schedule
from duo.spec.simulate import Guesses, Machine, Replay, constant, drawn, inform, recorded, replay
from duo.spec.types import Proposal
from tests.unit.spec.machines import (
    APART,
    CLIFF_AT_EIGHT,
    MACHINES,
    N_AHEAD,
    N_MAX,
    TWO_CORES,
    Fixed,
    best_rate,
    concurrent_rate,
    foresee,
    sequential_rate,
)  # fmt: skip

FLAT = Machine([0.5] * 9, 0.1, [0.5] * 9, 0.1)
SLOW_DRAFT = Machine([0.1] * 9, 0.15, [0.1] * 9, 0.15)


@cache
def auto(machine: Machine, acceptance: float) -> tuple[Policy, Replay]:
    """A policy that chooses its schedule, and what it reaches."""
    policy = Policy(N_MAX, N_AHEAD, apart=machine is APART)
    return policy, replay(policy, machine, constant(acceptance), 3000)


# Replays


@pytest.mark.parametrize("schedule", ALL)
def test_replay_accounts_for_every_token_step_and_second(schedule: Schedule) -> None:
    found = replay(Policy(N_MAX, N_AHEAD, (schedule,)), APART, constant(0.8), 1000)
    assert 1000 <= found.tokens <= 1000 + N_MAX
    assert found.tokens_in == {other: found.tokens if other is schedule else 0 for other in ALL}
    assert found.tokens <= sum(k + 1 for k in found.n_verified)
    decodes_s = sum(APART.target_s[k] for k in found.n_verified)
    assert found.seconds == pytest.approx(decodes_s + found.waited_s)
    assert found.rate == pytest.approx(found.tokens / found.seconds)
    if schedule is Schedule.OFF:
        assert set(found.n_verified) == {0}
        assert found.seconds == pytest.approx(1000 * 0.490)


@pytest.mark.parametrize(
    ("machine", "k", "wait", "schedule"),
    [
        *((APART, k, wait, Schedule.ASYNC) for k, wait in ((0, 0), (1, 1), (3, 1), (6, 4), (8, 8))),
        *((SLOW_DRAFT, k, wait, Schedule.ASYNC) for k, wait in ((1, 1), (4, 2))),  # its late token is of no use
        *((TWO_CORES, k, k, Schedule.SYNC) for k in (1, 3, 8)),
    ],
)
def test_replay_with_fixed_settings_reaches_the_rate_of_the_formula(
    machine: Machine, k: int, wait: int, schedule: Schedule
) -> None:
    found = replay(Fixed(k, wait, schedule), machine, constant(0.8), 5000).rate
    sequential = schedule is Schedule.SYNC
    formula = sequential_rate(machine, 0.8, k) if sequential else concurrent_rate(machine, 0.8, k, wait)
    assert found == pytest.approx(formula, rel=0.04)


class LateStart(Fixed):
    """The target alone for 100 tokens, then sequential with one candidate each."""

    def __init__(self) -> None:
        super().__init__(1, 1, Schedule.SYNC)
        self._written = 0

    @property
    def schedule(self) -> Schedule:
        return Schedule.SYNC if self._written >= 100 else Schedule.OFF

    def decide(self, n_room: int, drafted: Proposal, *others: Proposal) -> Decision:
        return super().decide(n_room, drafted) if self.schedule is Schedule.SYNC else Decision(0)

    def learn_step(self, n_tokens: int, cost: StepCost) -> None:
        self._written += n_tokens


def test_a_draft_that_was_off_has_to_prefill_what_was_written_without_it() -> None:
    machine = Machine([0.5] * 9, 0.1, [0.5] * 9, 0.1, read_s=0.05)
    found = replay(LateStart(), machine, constant(0.0), 102)
    assert found.n_verified == [0] * 100 + [1] * 2
    assert found.seconds == pytest.approx(102 * 0.5 + 2 * 0.1 + 100 * 0.05, abs=0.06)


def first(guesses: Guesses, n: int) -> list[tuple[float, bool]]:
    return [guesses(i) for i in range(n)]


def test_constant_candidates_are_right_as_often_as_asked_and_reproducible() -> None:
    candidates = first(constant(0.3, 5), 5000)
    assert sum(right for _, right in candidates) / 5000 == pytest.approx(0.3, abs=0.02)
    assert candidates == first(constant(0.3, 5), 5000) != first(constant(0.3, 6), 5000)
    assert all(right for _, right in first(constant(1.0), 100))
    assert not any(right for _, right in first(constant(0.0), 100))


def test_drawn_candidates_are_distributed_like_the_observed_ones() -> None:
    seen = [(0.1, False), (2.0, True), (3.0, True), (4.0, True)]
    candidates = first(drawn(seen), 4000)
    assert set(candidates) == set(seen)
    assert sum(right for _, right in candidates) / 4000 == pytest.approx(0.75, abs=0.03)


def test_recorded_candidates_begin_again_at_their_end() -> None:
    seen = [(0.1, False), (2.0, True)]
    assert first(recorded(seen), 5) == [*seen, *seen, seen[0]]


@pytest.mark.parametrize("schedule", [Schedule.SYNC, Schedule.ASYNC])
def test_the_draft_has_to_decode_the_prompt_first(schedule: Schedule) -> None:
    """Concurrently it is late by that time."""
    machine = Machine([0.5] * 9, 0.1, [0.5] * 9, 0.1, read_s=0.01)
    runs = [replay(Fixed(1, 1, schedule), machine, constant(0.0), 4, n_prompt) for n_prompt in (1, 151)]
    late_s = runs[1].seconds - runs[0].seconds
    assert late_s == pytest.approx(1.5)
    assert [n for n in runs[0].n_verified if n] == [1] * (3 + (schedule is Schedule.SYNC))


def test_the_policy_is_told_how_long_the_text_becomes() -> None:
    """A draft that pays only in a long text is not used in a short one."""
    machine = replace(TWO_CORES, read_s=0.005)
    runs = [replay(Policy(N_MAX, N_AHEAD), machine, constant(0.9), n, n_prompt=400) for n in (60, 400)]
    assert [found.tokens_in[Schedule.OFF] > 50 for found in runs] == [True, False]


def test_noise_is_in_what_the_policy_is_told_and_not_in_the_clock() -> None:
    told: list[float] = []

    class Told(Fixed):
        def learn_step(self, n_tokens: int, cost: StepCost) -> None:
            told.append(cost.decode_s)

    exact, noisy = (
        replay(Told(0, 0, Schedule.OFF), replace(FLAT, noise=noise, spikes=0.05), constant(0.0), 400)
        for noise in (0.0, 0.02)
    )
    assert exact == noisy
    assert set(told[:400]) == {0.5}
    assert median(told[400:]) == pytest.approx(0.5, rel=0.01)
    assert 5 < sum(seconds > 0.7 for seconds in told[400:]) < 40, "spikes"


def test_a_pair_that_is_informed_of_a_machine_knows_its_times() -> None:
    machine = replace(TWO_CORES, pair_s=0.021, latency_s=0.004, branch_s=[0.026, 0.03])
    pair = PairModel(N_MAX, N_AHEAD)
    inform(pair, machine)
    assert pair.alone.curve(9) == pytest.approx(machine.target_s)
    assert pair.beside.curve(9) == pytest.approx(machine.beside_target_s)
    assert (pair.alone.draft_s, pair.beside.draft_s) == pytest.approx((0.0173, 0.026))
    assert (pair.alone.pair_time(), pair.latency_s) == pytest.approx((0.021, 0.004))
    assert pair.beside.draft_time(0.0, 2) == pytest.approx(0.03)
    assert pair.alone.curve(9, 1.0) == pytest.approx(machine.target_s, rel=0.03), "with little doubt"


def test_the_draft_reads_two_tokens_as_fast_as_measured_and_others_by_their_number() -> None:
    machine = replace(FLAT, read_s=0.01)
    assert [machine.reading_s(n) for n in (1, 2, 11)] == pytest.approx([0.1, 0.11, 0.2])
    assert [replace(machine, pair_s=0.15).reading_s(n) for n in (1, 2, 11)] == pytest.approx([0.1, 0.15, 0.2])


# The policy on a machine on which sync gains 20 to 25 %, and on which a target for two tokens is faster than for one


def cliff(pair: float) -> Machine:
    return replace(CLIFF_AT_EIGHT, pair_s=pair * CLIFF_AT_EIGHT.draft_s)


@cache
def forced(pair: float, n_tokens: int = 2000) -> Replay:
    return replay(Policy(N_MAX, N_AHEAD, (Schedule.SYNC,)), cliff(pair), constant(0.81), n_tokens)


@pytest.mark.parametrize("pair", [1.0, 1.5, 1.9])
def test_what_is_forecast_of_sync_is_reached_if_it_is_forced(pair: float) -> None:
    known = PairModel(N_MAX, N_AHEAD)
    inform(known, cliff(pair))
    rate = known.forecasts(0.81, constant=True)[Schedule.SYNC].rate
    assert rate >= max(sequential_rate(cliff(pair), 0.81, k) for k in range(N_MAX + 1)) * (1 - 1e-6)
    assert forced(pair, 20_000).rate == pytest.approx(rate, rel=0.03)


@pytest.mark.parametrize("pair", [1.0, 1.5, 1.9])
def test_a_first_text_ends_in_sync_and_is_almost_as_fast_as_if_that_were_forced(pair: float) -> None:
    policy = Policy(N_MAX, N_AHEAD)
    found = replay(policy, cliff(pair), constant(0.81), 256)
    assert policy.schedule is Schedule.SYNC
    assert found.rate >= 0.92 * forced(pair).rate
    assert found.n_verified[2] == 3, "T(4) is measured once the target was decoded twice"
    assert policy.alone.target(4).value == pytest.approx(0.14942, rel=0.01)


# The policy


@MACHINES
@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
def test_policy_finds_the_best_schedule(machine: Machine, acceptance: float) -> None:
    """tests/proof/test_policy.py has longer texts, more machines, and drafts that change."""
    assert auto(machine, acceptance)[1].rate >= 0.94 * best_rate(machine, acceptance)


@MACHINES
def test_the_same_run_is_decided_in_the_same_way(machine: Machine) -> None:
    first, second = (Policy(N_MAX, N_AHEAD) for _ in range(2))
    runs = [replay(policy, machine, constant(0.6, 3), 1000) for policy in (first, second)]
    assert runs[0] == runs[1]
    assert first.statistics() == second.statistics()


# Devices apart


def test_every_outcome_that_is_prepared_comes_true_if_the_draft_s_second_choice_is_always_right() -> None:
    machine = replace(APART, branch_s=9 * [APART.beside_draft_s])
    found = foresee(machine, Schedule.ASYNC, constant(0.8), N_MAX, 3000, branches=8, ranks=(1.0,))
    assert found.n_prepared >= 0.97 * found.n_contradicted > 0
    never = foresee(machine, Schedule.ASYNC, constant(0.8), N_MAX, 3000, branches=8, ranks=(0.0,))
    assert never.n_prepared == 0 < never.n_contradicted
    assert found.rate > 1.1 * never.rate
    assert never.n_opened < 0.5 * found.n_opened, "the policy learns that it prepares in vain"


def test_the_outcome_that_comes_true_costs_no_decode() -> None:
    """Always wrong, and always prepared: after each rejection the next candidate is there."""
    machine = Machine([0.5] * 9, 0.1, [0.5] * 9, 0.1, branch_s=9 * [0.1])

    class Prepares(Fixed):
        def lookahead(self) -> Lookahead:
            return Lookahead(N_AHEAD, 0.0, 9 * [0.5], n_branches=2, ranks=(1.0,))

    found = replay(Prepares(1, 1), machine, constant(0.0), 200, ranks=(1.0,))
    plain = replay(Fixed(1, 1), machine, constant(0.0), 200)
    assert plain.waited_s == pytest.approx(199 * 0.1)
    assert found.waited_s == 0
    assert found.n_prepared >= 199


def test_sequences_that_cost_more_slow_the_draft_down() -> None:
    assert [FLAT.drafting_s(n) for n in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.3])
    several = replace(FLAT, branch_s=[0.1, 0.11, 0.12])
    assert [several.drafting_s(n) for n in (1, 3, 6)] == pytest.approx([0.1, 0.12, 0.24])


def test_a_draft_that_cannot_abort_begins_anew_after_its_decode() -> None:
    machine = Machine([0.55] * 9, 0.1, [0.55] * 9, 0.1)
    aborts, ends = (replay(Fixed(1, 1), replace(machine, aborts=each), constant(0.0), 200) for each in (True, False))
    assert aborts.waited_s == pytest.approx(199 * 0.1)
    assert ends.waited_s == pytest.approx(0.1 + 198 * 0.15)


@pytest.mark.parametrize("schedule", [Schedule.SYNC, Schedule.ASYNC])
def test_latency_delays_the_first_candidate_after_a_rejection(schedule: Schedule) -> None:
    near, far = (
        replay(Fixed(2, 2, schedule), replace(FLAT, latency_s=latency_s), constant(0.0), 100)
        for latency_s in (0.0, 0.04)
    )
    assert far.seconds - near.seconds == pytest.approx((100 if schedule is Schedule.SYNC else 98) * 0.04)
