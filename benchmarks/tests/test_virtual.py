"""Replays in virtual time: what a machine of known costs does, and what a controller does on it."""

from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks import joint
from benchmarks.oracle import Case
from benchmarks.virtual_clock import VirtualClock
from duo.diagnose.prospects import foretell, informed
from duo.speculation.machine import Machine
from duo.speculation.modes import ALL, Schedule
from tests.unit.speculation.pairs import (
    SEPARATE,
    TWO_CORES,
    concurrent_rate,
    fixed,
    pair,
    prepared,
    sequential_rate,
)  # fmt: skip

FLAT = Machine([0.5] * 9, 0.1, [0.5] * 9, 0.1)
SLOW_DRAFT = Machine([0.1] * 9, 0.15, [0.1] * 9, 0.15)


# The clock


def test_threads_go_on_in_the_order_of_their_moments_and_time_is_what_they_wait_for() -> None:
    clock, seen = VirtualClock(), list[tuple[str, float]]()
    bell, never = clock.condition(), clock.condition()

    def listen() -> None:
        assert not never.wait(1.0)
        seen.append(("a timeout", clock.now()))
        assert bell.wait(9.0)
        seen.append(("told", clock.now()))

    thread = clock.thread(listen, "listener")
    thread.start()
    assert not never.wait(3.0)
    seen.append(("later", clock.now()))
    bell.notify_all()
    thread.join()
    assert seen == [("a timeout", 1.0), ("later", 3.0), ("told", 3.0)]
    assert (clock.now(), clock.n_threads) == (3.0, 0)
    with pytest.raises(RuntimeError, match="wait for each other"):
        never.wait()


# Machines


@pytest.mark.parametrize("schedule", ALL)
def test_a_replay_accounts_for_every_token_and_step(schedule: Schedule) -> None:
    found = pair(schedules=(schedule,)).replay(SEPARATE, 0.8, 1000)
    assert found.tokens_in == {other: 1000 if other is schedule else 0 for other in ALL}
    assert found.ends[-1] == (1000, found.seconds)
    assert found.rate == pytest.approx(1000 / found.seconds)
    assert sum(k + 1 for k in found.n_verified) >= 1000
    if schedule is Schedule.OFF:
        assert found.seconds == pytest.approx(1000 * 0.490)


@pytest.mark.parametrize(
    ("machine", "k", "wait", "schedule"),
    [
        *((SEPARATE, k, wait, Schedule.ASYNC) for k, wait in ((0, 0), (3, 1), (6, 4))),
        (SLOW_DRAFT, 4, 2, Schedule.ASYNC),  # its late token is of no use
        *((TWO_CORES, k, k, Schedule.SYNC) for k in (1, 8)),
    ],
)
def test_fixed_settings_reach_the_rate_of_the_formula(machine: Machine, k: int, wait: int, schedule: Schedule) -> None:
    found = fixed(k, wait, schedule).replay(machine, 0.8, 5000).rate
    sequential = schedule is Schedule.SYNC
    formula = sequential_rate(machine, 0.8, k) if sequential else concurrent_rate(machine, 0.8, k, wait)
    assert found == pytest.approx(formula, rel=0.04)


def test_a_draft_that_cannot_abort_begins_anew_after_its_decode() -> None:
    machine = Machine([0.55] * 9, 0.1, [0.55] * 9, 0.1)
    aborts, ends = (fixed(1, 1).replay(replace(machine, aborts=each), 0.0, 200) for each in (True, False))
    assert aborts.seconds == pytest.approx(200 * 0.55 + 200 * 0.1)
    assert ends.seconds == pytest.approx(200 * 0.55 + 0.1 + 199 * 0.15)


# A draft on another machine

# Two Macs: small batches take the draft little longer than one token; it is a GPU, which cannot abort a decode.
FAR = Machine(
    [0.303 + 0.004 * n for n in range(17)], 0.062, [0.303 + 0.004 * n for n in range(17)], 0.062, 0.008,
    branch_s=[0.062 + 0.008 * n for n in range(9)], latency_s=0.02, aborts=False,
)  # fmt: skip


def test_the_first_candidate_after_a_rejection_comes_after_a_round_trip() -> None:
    """The draft is always wrong: each token costs a round trip, a token of the draft and a decode of the target."""
    found = fixed(1, 1, remote=True).replay(replace(FAR, branch_s=(), aborts=True), 0.0, 200)
    assert found.seconds / 200 == pytest.approx(FAR.target_s[1] + 0.02 + 0.062, rel=0.02)


@pytest.mark.parametrize("aborts", [True, False])
def test_the_end_of_a_decode_that_cannot_be_aborted_is_no_part_of_the_round_trip(*, aborts: bool) -> None:
    made = pair(schedules=(Schedule.ASYNC,), branches=0, remote=True, aborts=aborts)
    made.replay(replace(FAR, aborts=aborts), 0.6, 400)
    assert made.draft.costs.latency_s == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(("acceptance", "delay_s"), [(0.6, 0.03), (0.75, 0.001)])
def test_outcomes_prepared_over_a_link_are_worth_what_was_foretold(acceptance: float, delay_s: float) -> None:
    machine = replace(FAR, latency_s=2 * delay_s)
    rates = [fmean(prepared(machine, acceptance, 1000, n, seed=i).rate for i in range(4)) for n in (0, None)]
    prospects = foretell(informed(machine, acceptance, 16), constant=True, prepares=True)
    assert prospects.prepared is not None
    foretold = [prospects.found[Schedule.ASYNC].rate, prospects.prepared.rate]
    assert rates == [pytest.approx(rate, rel=0.06) for rate in foretold]
    assert rates[1] > 1.05 * rates[0]


def test_a_worker_whose_device_does_several_sequences_badly_prepares_none() -> None:
    slow = replace(FAR, branch_s=[0.062 * n for n in range(1, 10)])
    found = prepared(slow, 0.75, 1000, None)
    assert found.n_opened == 0
    assert found.rate == prepared(slow, 0.75, 1000, 0).rate


# Outcomes prepared


def test_every_outcome_that_is_prepared_comes_true_if_the_draft_s_second_choice_is_always_right() -> None:
    machine = replace(SEPARATE, branch_s=9 * [SEPARATE.concurrent_draft_s])
    found = prepared(machine, 0.8, 2000, 8, ranks=(1.0,))
    assert found.n_prepared >= 0.97 * found.n_contradicted > 0
    never = prepared(machine, 0.8, 2000, 8, ranks=(0.0,))
    assert never.n_prepared == 0 < never.n_contradicted
    assert found.rate > 1.1 * never.rate
    assert never.n_opened < 0.5 * found.n_opened, "the controller learns that it prepares in vain"


# Several texts


def test_texts_that_are_written_together_take_what_their_decodes_take() -> None:
    right = tuple((5.0, True) for _ in range(64))
    case = Case("flat", replace(FLAT, pair_s=0.12, read_s=0.01), (right,) * 3)
    texts = [joint.Text(right, None) for _ in range(3)]
    assert joint.rate_of(case, case.pair(), texts, joint.Setting("off", 0, 0)) == pytest.approx(3 / 0.5)
    # A step of nine rows: the draft reads the last two tokens of each text, and then one of each.
    found = joint.rate_of(case, case.pair(), texts, joint.Setting("draft 2", 0, 2))
    assert found == pytest.approx(9 / (0.5 + (0.1 + 5 * 0.01) + (0.1 + 2 * 0.01)), rel=0.02)


def test_several_texts_get_the_candidates_that_pay() -> None:
    right = tuple((5.0, True) for _ in range(64))
    flat = replace(FLAT, target_s=[0.5] * 17, draft_s=0.01, pair_s=0.012, read_s=0.001)
    case = Case("flat", flat, (right,) * 4)
    assert joint.judge(case).over_off > 2
    steep = replace(case, machine=replace(case.machine, target_s=[0.1 * n for n in range(1, 18)]))
    assert joint.judge(steep).over_off == pytest.approx(1.0, abs=0.03)
