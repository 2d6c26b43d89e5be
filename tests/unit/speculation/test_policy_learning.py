"""What a policy learns and explores, in one text, text after text, and from run to run."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from duo.speculation.policy import REJECTION, Decision, Policy, StepCost

from benchmarks.virtual import MODE, constant, replay
from duo.config import MAX_THREADS
from duo.speculation.constants import DEFAULT
from duo.speculation.machine import Machine
from duo.speculation.modes import ALL, ASYNC, OFF, SYNC, Schedule
from duo.speculation.types import Origin
from tests.unit.speculation.machines import N_AHEAD, TWO_CORES, times
from tests.unit.speculation.policies import FLAT, SLOW_TARGET, decide, policy, scores

STEP = StepCost(0, 0.1, 0.1)


def replayed() -> Policy:
    made = Policy(8, N_AHEAD)
    replay(made, TWO_CORES, constant(0.9), 2000)
    return made


@pytest.fixture(scope="module")
def learned() -> dict[str, Any]:
    """A state that is not to be modified."""
    return dict(replayed().state())


def another_run(made: Policy, policy: Policy) -> Policy:
    made.restore(json.loads(json.dumps(policy.state())))
    return made


def test_a_wrong_forecast_is_corrected() -> None:
    made = policy(FLAT, 0.005, 0.5)
    for _ in range(160):
        made.learn_step(1, StepCost(0, 0.010, 0.050))
    assert made.rates()[ASYNC] < 0.8 * made.forecasts()[ASYNC].rate
    assert made.rates()[OFF] == made.forecasts()[OFF].rate


@pytest.mark.parametrize("later", [0.00139, 0.00284])
def test_a_target_alone_that_seems_slower_than_with_candidates_is_measured_again(later: float) -> None:
    """A GPU's first decodes are slow, and in schedule sync there are none of one token."""
    slow, two = 0.00284, 0.0019
    made, n_alone = policy({1: slow, 2: two}, 0.0004, 0.3, schedules=(SYNC, OFF)), 0
    made.chooser.now = SYNC
    made.alone.target_times[1].begin()  # another text
    for _ in range(30):
        if made.schedule is OFF or decide(made, (0.3,)).n_verify == 0:
            n_alone += 1
            made.learn_step(1, StepCost(0, later, later))
        else:
            made.learn_draft(1, 0.0004)
            made.learn_step(1, StepCost(1, two, two + 0.0004))
    assert made.alone.target_s(1) == pytest.approx(later)
    assert made.schedule is (SYNC if later == slow else OFF)
    assert n_alone <= DEFAULT.few or later < slow


def test_a_draft_whose_time_goes_up_and_down_is_not_reviewed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target waits for a review. A GPU takes longer where the number of sequences has just changed."""
    made, n = policy(FLAT, 0.002, 0.7), count()
    made.begin(10, 1000)
    review = made._review
    monkeypatch.setattr(made, "_review", lambda: review() if next(n) >= 0 else None)
    for i in range(48):
        for _ in range(4):
            made.learn_draft(1, 0.004 if i % 2 else 0.002)
        made.learn_step(2, StepCost(2, 0.040, 0.042))
    assert 4 <= next(n) <= 12


def test_estimates_lie_between_the_low_and_the_high_one_and_what_is_shown_below_the_limit() -> None:
    made = policy(FLAT, 0.009, 0.9, schedules=ALL)
    made.restore(made.state() | {"bias": {"off": 2.0, "sync": 2.0, "async": 99.0}})
    for estimate in made.estimates(made.forecasts()).values():
        assert estimate.low <= 1.001 * estimate.rate <= 1.002 * estimate.high
    assert made.rates()[ASYNC] == pytest.approx(2.0 * made.forecasts()[ASYNC].rate), "a correction is limited"
    shown = made.statistics().forecast_tokens_per_s
    assert max(made.rates().values()) > made.max_rate() >= max(shown.values()) > 0
    assert Policy(8, N_AHEAD).max_rate() == math.inf


def test_the_draft_measured_while_loading_counts_until_it_was_measured_in_a_text() -> None:
    made = Policy(8, N_AHEAD, draft_threads=(2, 1))
    made.learn_warmup(2, 0.008)
    made.learn_warmup(1, 0.005)
    assert (made.knows_draft(1), made.knows_draft(3)) == (True, False)
    assert (made.alone.draft_s, made.n_draft_threads) == (0.005, 1)
    made.learn_warmup(1, 0.001)
    assert made.alone.draft_s == 0.005, "what is known is not replaced"
    made.learn_step(1, StepCost(0, 0.01, 0.01))
    assert set(made.forecasts()) == set(ALL), "before the draft was used"
    assert made.read_s == pytest.approx(0.2 * 0.005), "an estimate"
    made.learn_draft(16, 0.8)
    assert made.read_s == 0.05


def test_the_number_of_threads_that_may_be_the_fastest_is_used() -> None:
    made, seconds, tried = Policy(8, N_AHEAD, draft_threads=(4, 2, 1)), {4: 8.0, 2: 5.0, 1: 5.2}, []
    for _ in range(12):
        tried.append(n := made.n_draft_threads)
        made.alone.add_draft(seconds[n], n)
    assert tried[:3] == [4, 2, 1]
    assert tried.count(4) == 1, "clearly slower"
    assert tried.count(1) > 1, "it might be the fastest"
    assert tried[-1] == 2


# Text after text


def test_a_live_policy_forgets_nothing_between_texts() -> None:
    """Unlike what is kept in a file, which counts little when it is restored."""
    made, found = replayed(), []
    for _ in range(100):
        made.begin(10, mode=MODE)
        found.append((made.state(), [made.alone.target(n).n for n in range(1, 10)], made.rates()))
    assert found == 100 * found[:1]
    assert (made.schedule, [change.tokens for change in made.chooser.changes]) == (SYNC, [0])
    assert made.statistics().predicted_tokens_per_s is None


def test_each_mode_of_sampling_has_its_own_acceptance_and_all_share_the_costs() -> None:
    made, means = Policy(8, N_AHEAD, (ASYNC,)), {}
    for mode, acceptance in (("greedy", 0.9), ("coupled", 0.6), ("rejection", 0.2)):
        made.begin(10, mode=mode)
        prior = made.calibration.mean
        made.learn_scores(scores(acceptance))
        means[mode] = made.state()["acceptance"][mode]["mean"]
        assert abs(made.calibration.mean - acceptance) < abs(prior - acceptance)
    made.learn_step(1, StepCost(0, 0.010, 0.010))
    for run in (made, another_run(Policy(8, N_AHEAD, (ASYNC,)), made)):
        for mode, mean in means.items():
            run.begin(10, mode=mode)
            assert run.calibration.mean == pytest.approx(mean)
            assert run.costs.target_s(1) == 0.010


def test_after_the_draft_has_ended_the_target_stays_alone_in_this_text() -> None:
    made = policy(SLOW_TARGET, 0.025, 0.9)
    made.stop_drafting()
    assert not made.lookahead().allows([])
    assert decide(made, [9.0] * 4, 0.01) == Decision(0)
    for _ in range(1000):
        made.learn_step(1, StepCost(0, 0.49, 0.49))
        assert (made.schedule, made.probe_size()) == (OFF, 0)
    made.begin(10)
    assert made.schedule is ASYNC
    assert made.lookahead().allows(())


def test_with_a_remote_draft_the_target_is_first_measured_alone() -> None:
    """Otherwise nothing would show that the draft, on the same machine after all, slows it down."""
    made = Policy(4, 8, remote=True)
    made.begin(10)
    for _ in range(2):
        assert made.schedule is OFF
        assert not made.lookahead().allows(())
        made.learn_step(1, StepCost(0, 0.010, 0.010))
    assert made.schedule is ASYNC
    again = another_run(Policy(4, 8, remote=True), made)
    again.begin(10)
    again.learn_step(1, StepCost(0, 0.010, 0.010))
    assert again.schedule is ASYNC, "what was learned counts as one measurement"


# From run to run


@pytest.mark.parametrize(("factor", "acceptance"), [(1.0, None), (2.0, None), (1.0, 0.1)])
def test_a_profile_that_wrongly_says_that_drafting_does_not_pay_is_found_out(
    learned: dict[str, Any], factor: float, acceptance: float | None
) -> None:
    state = json.loads(json.dumps(learned))
    for costs in state["costs"]["0"]:
        costs["target_s"] = {n: [s * (factor if n != "1" else 1), d] for n, (s, d) in costs["target_s"].items()}
    if acceptance is not None:
        kept = state["acceptance"]["greedy"]
        kept["accepted"], kept["mean"] = [acceptance] * len(kept["accepted"]), acceptance
    made = Policy(8, N_AHEAD)
    made.restore(state)
    found = [replay(made, TWO_CORES, constant(0.9, seed), 256) for seed in range(2)]
    assert (found[0].tokens_in[OFF] == 0) is ((factor, acceptance) == (1.0, None))
    assert found[0].rate > 0.9 / TWO_CORES.target_s[0]
    assert found[1].tokens_in[SYNC] > 0.85 * 256, "at least in the next text"
    assert made.alone.target_s(4) == pytest.approx(TWO_CORES.target_s[3], rel=0.05)


def test_the_costs_of_each_number_of_cores_are_kept_and_the_current_one_remains() -> None:
    made, again = Policy(8, N_AHEAD), Policy(8, N_AHEAD)
    for n_cores, seconds in ((0, 0.010), (3, 0.030)):
        made.use_cores(n_cores)
        made.alone.add_target(1, seconds)
        made.concurrent.add_target(1, 2 * seconds)
    again.use_cores(3)
    another_run(again, made)
    assert (again.alone.target(1).value, again.concurrent.target(1).value) == (0.030, 0.060)
    again.use_cores(0)
    assert (again.alone.target(1).value, again.concurrent.target(1).value) == (0.010, 0.020)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("costs", "much"), ("costs", {"0": []}), ("costs", {"0": [{}, {}, {}]}), ("costs", {"-1": [{}, {}]}),
        ("costs", {"all": [{}, {}]}), ("costs", {str(MAX_THREADS + 1): [{}, {}]}),
        ("costs", {"0": [{"target_s": {"1": -1}}, {}]}), ("costs", {"0": [{}, {"target_s": {"1": ["0.1", 0]}}]}),
        ("costs", {"0": [{"target_s": {"1": [0.1, True]}}, {}]}), ("costs", {"0": [{"target_s": {"0": [0.1, 0]}}, {}]}),
        ("costs", {"0": [{"pair_s": {"3": [0.1, 0]}}, {}]}), ("costs", {"0": [{"branch_s": {"10": [1.0, 0.1]}}, {}]}),
        ("acceptance", {"greedy": {"mean": 7}}), ("read_s", True), ("read_s", 10**400), ("latency_s", math.nan),
        ("bias", {"sync": None}), ("bias", {"sync": 1, "async": 1, "off": 10**400}), ("bias", KeyError),
        ("ranks", [2.0, 0, 0]), ("ranks", []), ("shares", [0.5] * 9), ("mean", math.nan), ("accepted", [-0.1] * 9),
        ("edges", [1.0]), ("probes", [1]), ("probes", [-1, 0]), ("probes", [0, "much"]),
    ],
)  # fmt: skip
def test_nothing_of_a_damaged_state_is_restored(name: str, value: object) -> None:
    state: Any = policy(FLAT, acceptance=0.5, mode="greedy").state()
    made = Policy(8, N_AHEAD)
    assert Policy(8, N_AHEAD).restore_kept(state)
    acceptance = state["acceptance"]["greedy"]
    part = acceptance if name in acceptance else state
    part[name] = value
    if value is KeyError:
        del part[name]
    assert not made.restore_kept(state)
    assert made.state() == Policy(8, N_AHEAD).state()


def test_a_draft_of_which_nothing_is_known_has_the_budget_of_a_first_text() -> None:
    """Also where T(n) is known, from the target alone or from another draft."""
    made, found = Policy(8, N_AHEAD), []
    for n_scored in (0, 0, 24, 0):
        made.begin(10, mode=MODE)
        made.learn_step(1, STEP)
        found.append(made.chooser.budget.credit_s / 0.1)
        made.learn_scores(scores(0.5, n_scored))
    assert found == pytest.approx([DEFAULT.first, DEFAULT.first, DEFAULT.first, DEFAULT.later], abs=0.01)


# Probes


def unsure(target_s: dict[int, float]) -> Policy:
    """A policy whose draft may pay or not, in a text whose prompt is too long to try it."""
    made = policy(target_s, 0.01, 0.3, schedules=ALL)
    made.begin(400)
    return continue_off(made, 16)


def continue_off(made: Policy, n_steps: int) -> Policy:
    for _ in range(n_steps):
        made.learn_step(1, STEP)
    return made


EASY = {1: 0.1, 2: 0.12, 4: 0.13}


def test_a_draft_that_may_pay_is_probed_when_nothing_was_scored_for_long_and_the_credit_covers_it() -> None:
    made = unsure(EASY)
    assert (made.schedule, made.probe_size()) == (OFF, 24)
    made.learn_scores(scores(0.3, 2))
    assert continue_off(made, 1).probe_size() == 0
    assert continue_off(made, 16).probe_size() == 24
    credit_s = made.chooser.budget.credit_s
    made.learn_probe(scores(0.3, 12), 24, 0.24, whole=False)
    assert made.chooser.budget.credit_s == pytest.approx(credit_s - 0.24)
    assert made.read_s == 0.01
    assert continue_off(made, 200).probe_size() == 0
    assert continue_off(made, 800).probe_size() >= 16, "a share of 100 s"


def test_tokens_that_the_lookup_finds_do_not_bring_the_next_probe_nearer() -> None:
    made = unsure(EASY)
    made.learn_scores(scores(0.3, 2))
    for _ in range(16):
        made.learn_step(9, StepCost(8, 0.2, 0.2, Origin.LOOKUP))
    assert made.probe_size() == 0
    assert continue_off(made, 1).probe_size() == 24


def test_a_later_text_may_be_short_so_that_its_first_probe_is_a_small_share_of_it() -> None:
    made = unsure(EASY)
    made.learn_scores(scores(0.3, 24))
    made.learn_draft(24, 0.48)
    made.begin(400)
    made.chooser.budget.spend(-0.4)
    assert continue_off(made, 90).probe_size() == 0, "2.4 tokens' time, in which the draft reads 24, of 90"
    assert continue_off(made, 10).probe_size() == 24


def test_probes_become_rarer_after_texts_in_which_they_found_that_drafting_does_not_pay() -> None:
    """Also if each text is written by another process. A draft that has become better is probed in each text again."""

    made = policy(EASY, 0.01, 0.0, schedules=ALL)

    def probed(accepted: float) -> bool:
        nonlocal made
        state, made = made.state(), policy(EASY, 0.01, 0.0, schedules=ALL)
        assert made.restore_kept(state)
        made.begin(10)
        made.chooser.budget.spend(-99.0)
        found = False
        for _ in range(200):
            if n := made.probe_size():
                found = True
                made.learn_probe(scores(accepted, 12), n, 0.01, whole=True)
            made.learn_step(1, STEP)
        return found

    often, rarely = ([probed(0.0) for _ in range(n)] for n in (6, 30))
    assert all(often)
    assert 5 < sum(rarely) < 15
    while not probed(0.9):
        pass
    assert made.state()["probes"][0] == 0


@pytest.mark.parametrize(("target_s", "pays"), [(EASY, True), ({n: 0.15 * n - 0.05 for n in range(1, 10)}, False)])
def test_a_draft_is_not_asked_where_it_cannot_pay(target_s: dict[int, float], pays: bool) -> None:
    made, asked = unsure(target_s), False
    made.chooser.budget.spend(-99.0)
    for _ in range(200):
        asked = asked or made.probe_size() > 0
        made.learn_step(1, STEP)
    assert (asked or bool(made.chooser.changes)) is pays


def test_a_probe_tells_the_draft_s_time_if_no_warm_up_did() -> None:
    made = Policy(8, 16)
    made.begin(10)
    assert continue_off(made, 20).probe_size()
    assert made.forecasts() == {}
    made.learn_probe(scores(0.9, 12), 24, 0.24, whole=False)
    assert made.alone.draft_s == pytest.approx(0.01 / DEFAULT.read)
    assert made.forecasts()
    assert not made.state()["costs"]["0"][0]["draft_s"], "it is inferred"


# Batches of arbitrary candidates. T(1) is 0.1 s, and drafting does not pay


T = {1: 0.1, 2: 0.12, 4: 0.3, 8: 0.8}


def begun(schedules: Sequence[Schedule] = ALL, n_room: int | None = None) -> Policy:
    made = Policy(8, N_AHEAD, schedules)
    made.begin(10, n_room, mode="greedy")
    made.learn_warmup(1, 0.05)
    return made


def sizes(made: Policy, n_steps: int) -> list[int]:
    """Sizes of the batches that the policy decides on, without candidates of the draft."""
    found = []
    for _ in range(n_steps):
        decision = decide(made)
        found.append(n := decision.n_verify + 1)
        made.learn_step(1, StepCost(decision.n_verify, T[n], T[n], decision.origin))
    return found


@pytest.mark.parametrize(
    ("schedules", "n_room", "found"),
    [
        (ALL, None, [1, 1, 4, 4, 2, *[1] * 15]),  # four tokens twice after two decodes of one, then two tokens once
        ((SYNC,), None, [1] * 20),  # where there is no choice
        ((OFF,), None, [1] * 20),
        (ALL, 16, [1, 1, 1]),  # a credit of 0.8, 1.4 and 3 tokens; four may cost 1.75 more than one
        (ALL, 28, [1, 1, 2]),
        (ALL, 60, [1, 1, 4]),
    ],
)
def test_typical_sizes_are_measured_if_the_credit_covers_it(
    schedules: Sequence[Schedule], n_room: int | None, found: list[int]
) -> None:
    assert sizes(begun(schedules, n_room), len(found)) == found


def test_these_tokens_are_arbitrary_unless_the_text_itself_has_as_many() -> None:
    for n_found, source in ((0, Origin.ANY), (2, Origin.ANY), (3, Origin.LOOKUP)):
        made = begun()
        sizes(made, 2)
        assert decide(made, found=[(0.01, 9.0)] * n_found) == Decision(3, origin=source)


def test_another_run_measures_two_tokens_to_see_whether_what_is_known_holds() -> None:
    made = begun()
    made.learn_scores([(1.0, False)] * 24)
    sizes(made, 5)
    again = another_run(Policy(8, N_AHEAD), made)
    for expected in ([1, 2, *[1] * 18], [1] * 20):  # once in a run
        again.begin(10, mode="greedy")
        assert sizes(again, 20) == expected


# Outcomes prepared

_CARDS = times({1: 25, 2: 26, 4: 29, 8: 38})
CHEAP = Machine(_CARDS, 0.008, _CARDS, 0.008, branch_s=[0.008 + 0.0002 * n for n in range(9)])
DEAR = replace(CHEAP, branch_s=[0.008 * (n + 1) for n in range(9)])


def knowing(
    machine: Machine,
    schedules: tuple[Schedule, ...] = (ASYNC,),
    mode: str = "greedy",
    *,
    branches: int | None = None,
    remote: bool = False,
) -> Policy:
    """A policy that knows the machine's costs, in a text."""
    made = Policy(8, N_AHEAD, schedules, separate_devices=True, branches=branches, remote=remote)
    made.begin(0, mode=mode)
    made.learn_machine(machine)
    made.learn_scores([(1.0, i % 5 > 0) for i in range(100)])
    made.begin(0, mode=mode)
    return made


def test_as_many_outcomes_as_pay_are_prepared_or_as_many_as_were_given() -> None:
    made = knowing(CHEAP)
    assert made.lookahead().n_branches in (4, 8)
    assert made.rate > 1.1 * knowing(DEAR).rate
    assert knowing(DEAR).lookahead().n_branches == 0
    assert [knowing(DEAR, branches=n).lookahead().n_branches for n in (0, 3, 8)] == [0, 3, 8]
    for rank, is_right in ((-1, False), (0, True)):
        for _ in range(200):
            made.calibration.add_rank(rank)
        made.begin(0, mode="greedy")
        assert (made.lookahead().n_branches > 0) is is_right


@pytest.mark.parametrize("branches", [None, 8])
def test_no_outcomes_are_prepared_where_that_is_impossible(branches: int | None) -> None:
    impossible = (
        knowing(CHEAP, (SYNC,), branches=branches),
        knowing(CHEAP, mode=REJECTION, branches=branches),
        knowing(CHEAP, branches=branches, remote=True),
    )
    assert [made.lookahead().n_branches for made in impossible] == [0, 0, 0]
    impossible[1].begin(0, mode="greedy")
    assert impossible[1].lookahead().n_branches > 0, "in the next text again"


def test_what_is_known_of_branches_is_reported_and_kept() -> None:
    made = knowing(CHEAP)
    for rank in (0, 2, -1):
        made.calibration.add_rank(rank)
    found = made.statistics()
    assert (found.n_branches, found.ranks) == (made.lookahead().n_branches, made.lookahead().ranks)
    assert found.draft_ms_by_sequences == pytest.approx([1000 * s for s in CHEAP.branch_s])
    another = another_run(Policy(8, N_AHEAD, (ASYNC,), separate_devices=True, branches=None), made)
    another.begin(0, mode="greedy")
    assert another.lookahead().n_branches > 0
    assert another.lookahead().ranks == pytest.approx(made.lookahead().ranks)
    for _ in range(20):
        made.learn_draft(1, 0.5, 9)
    assert made.costs.draft_s == pytest.approx(0.008)


# Times of a clock that jumps: the machine was suspended, or a virtual one paused

JUMP = 64.0


def longest(made: Policy) -> float:
    """The longest time that a profile would keep."""
    kept = [times for both in made.state()["costs"].values() for costs in both for times in costs.values()]
    return max(seconds for times in kept for seconds, _ in times.values())


@pytest.mark.parametrize("n_candidates", [0, 3, 7])
def test_a_step_during_which_the_machine_was_suspended_is_not_learned(n_candidates: int) -> None:
    made = Policy(8, N_AHEAD)
    made.learn_target_warmup(0.012)
    made.begin(10)
    made.learn_step(1, StepCost(n_candidates, JUMP, JUMP))  # the first of its size
    for _ in range(2):
        made.learn_step(1, StepCost(0, 0.010, 0.010))
        made.learn_step(1, StepCost(n_candidates, JUMP, JUMP))
    assert made.alone.target(1).value == pytest.approx(0.010)
    assert max(made.alone.curve(9)) < 1
    assert longest(made) < 1


def test_a_machine_that_has_become_a_hundred_times_slower_is_noticed() -> None:
    """Its weights are read from the disk again for every token."""
    made = Policy(8, N_AHEAD)
    made.begin(10)
    for seconds in [0.02] * 8 + [3.0] * 8:
        made.learn_step(1, StepCost(0, seconds, seconds))
    assert made.alone.target(1).value == pytest.approx(3.0)


def test_times_of_a_draft_that_was_suspended_are_not_learned(learned: dict[str, Any]) -> None:
    made = replayed()
    before = made.concurrent.draft_s, made.alone.draft_s, made.read_s
    made.chooser.now = ASYNC
    made.concurrent.draft_times.clear()
    made.learn_draft(1, JUMP)
    made.learn_draft(1, before[0])
    made.learn_probe([(1.0, True)], 24, 24 * JUMP, whole=False)
    assert (made.concurrent.draft_s, made.alone.draft_s, made.read_s) == before
    made.learn_draft(0, 0.0)  # of a remote draft: it was made of what it had already decoded
    made.learn_draft(4000, 4000 * made.read_s)
    assert made.read_s == pytest.approx(before[2]), "a long text may take as long"


@pytest.mark.parametrize(
    ("name", "number"), [("target_s", "1"), ("target_s", "5"), ("draft_s", "1"), ("branch_s", "3"), ("pair_s", "2")]
)
@pytest.mark.parametrize("condition", [0, 1])
def test_such_times_in_a_profile_are_found_out(learned: dict[str, Any], name: str, number: str, condition: int) -> None:
    state = json.loads(json.dumps(learned))
    state["costs"]["0"][condition][name][number] = [JUMP, 0.1]
    state["read_s"] = state["latency_s"] = JUMP
    made = Policy(8, N_AHEAD)
    assert made.restore_kept(state)
    assert longest(made) < 1
    assert made.read_s < 1
    assert made.latency_s == 0


def test_a_profile_with_nothing_else_is_found_out_by_the_warm_up_or_the_first_step(learned: dict[str, Any]) -> None:
    for warm in (True, False):
        state = json.loads(json.dumps(learned))
        state["costs"] = {
            "0": [{"target_s": {"1": [JUMP, 0.1], "2": [1.5 * JUMP, 0.1]}, "draft_s": {"1": [0.002, 0.1]}}, {}]
        }
        made = Policy(8, N_AHEAD)
        assert made.restore_kept(state)
        if warm:
            made.learn_target_warmup(0.012)
        made.begin(10)
        made.learn_step(1, StepCost(0, 0.010, 0.010))
        assert made.alone.target(1).value == pytest.approx(0.010)
        assert made.alone.draft_s == 0.002, "it is not scaled"
        assert made.alone.target_s(2) < 1 or not warm
