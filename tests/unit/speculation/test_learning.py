"""What a controller learns and explores, in one text, text after text, and from run to run."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from duo.config import MAX_THREADS
from duo.speculation.constants import DEFAULT
from duo.speculation.controller import REJECTION, Controller
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.estimators import Mean
from duo.speculation.forecast import Forecast, overlapped
from duo.speculation.machine import Machine
from duo.speculation.modes import ALL, ALONE, ASYNC, OFF, SYNC, Schedule
from duo.speculation.report import report
from duo.speculation.types import Origin, Plan, Probe, Proposal, StepCost
from tests.unit.speculation.pairs import (
    ASYNC_MODE,
    FLAT,
    N_AHEAD,
    SLOW_TARGET,
    SYNC_MODE,
    TWO_CORES,
    Pair,
    knowing,
    pair,
    scores,
    text,
    times,
    written,
)


def replayed() -> Pair:
    made = pair()
    made.replay(TWO_CORES, 0.9, 2000)
    return made


@pytest.fixture(scope="module")
def learned() -> str:
    return json.dumps(replayed().state())


def another_run(made: Pair, **options: Any) -> Pair:
    restored = pair(**options)
    assert restored.restore(made.state())
    return restored


def test_a_wrong_forecast_is_corrected() -> None:
    made = knowing(FLAT, 0.005, 0.5)
    for _ in range(160):
        made.step(1, 0, 0.010, 0.050)
    found = {mode.schedule: each.rate for mode, each in made.controller.prospects.forecasts().items()}
    assert made.rates()[ASYNC] < 0.8 * found[ASYNC]
    assert made.rates()[OFF] == found[OFF]


@pytest.mark.parametrize("later", [0.00139, 0.00284])
def test_a_target_alone_that_seems_slower_than_with_candidates_is_measured_again(later: float) -> None:
    """A GPU's first decodes are slow, and in schedule sync there are none of one token."""
    slow, two = 0.00284, 0.0019
    made, n_alone = knowing({1: slow, 2: two}, 0.0004, 0.3, (SYNC, OFF)), 0
    made.use(SYNC_MODE)
    alone = made.controller.target.alone
    alone.times[1].begin()  # another text
    for _ in range(30):
        if made.controller.schedule is OFF or made.plan((0.3,)) == Plan():
            n_alone += 1
            made.step(1, 0, later)
        else:
            made.draft.learn_draft(1, 0.0004)
            made.step(1, 1, two, two + 0.0004)
    assert alone.seconds(1) == pytest.approx(later)
    assert made.controller.schedule is (SYNC if later == slow else OFF)
    assert n_alone <= DEFAULT.few or later < slow


def test_a_draft_whose_time_goes_up_and_down_is_not_reviewed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target waits for a review. A GPU takes longer where the number of sequences has just changed."""
    made, n = knowing(FLAT, 0.002, 0.7), count()
    made.begin(10, 1000)
    review = made.controller._review
    monkeypatch.setattr(made.controller, "_review", lambda: review() if next(n) >= 0 else None)
    for i in range(48):
        for _ in range(4):
            made.draft.learn_draft(1, 0.004 if i % 2 else 0.002)
        made.step(2, 2, 0.040, 0.042)
    assert 4 <= next(n) <= 12


def test_estimates_lie_between_the_low_and_the_high_one_and_what_is_shown_below_the_limit() -> None:
    made = knowing(FLAT, 0.009, 0.9, ALL)
    target, draft = made.state()
    assert made.restore([target | {"bias": 2.0}, draft | {"bias": {"sync": 2.0, "async": 99.0}}])
    controller, prospects = made.controller, made.controller.prospects
    found = prospects.forecasts()
    for estimate in prospects.estimates(found).values():
        assert estimate.low <= 1.001 * estimate.rate <= 1.002 * estimate.high
    assert made.rates()[ASYNC] == pytest.approx(2.0 * found[ASYNC_MODE].rate), "a correction is limited"
    shown = report(controller).forecast_tokens_per_s
    assert max(made.rates().values()) > prospects.max_rate() >= max(shown.values()) > 0
    assert Controller().prospects.max_rate() == math.inf


def test_the_draft_measured_while_loading_counts_until_it_was_measured_in_a_text() -> None:
    made = pair(draft_threads=(2, 1))
    draft, costs = made.draft, made.draft.costs
    draft.learn_warmup(2, 0.008)
    draft.learn_warmup(1, 0.005)
    assert (costs.knows(1), costs.knows(3)) == (True, False)
    assert (costs.alone.token_s, draft.n_threads) == (0.005, 1)
    draft.learn_warmup(1, 0.001)
    assert costs.alone.token_s == 0.005, "what is known is not replaced"
    made.begin()
    made.step(1, 0, 0.01)
    assert set(made.rates()) == set(ALL), "before the draft was used"
    assert costs.read_s == pytest.approx(0.2 * 0.005), "an estimate"
    draft.learn_draft(16, 0.8)
    assert costs.read_s == 0.05


def test_the_number_of_threads_that_may_be_the_fastest_is_used() -> None:
    draft, seconds, tried = pair(draft_threads=(4, 2, 1)).draft, {4: 8.0, 2: 5.0, 1: 5.2}, []
    for _ in range(12):
        tried.append(n := draft.n_threads)
        draft.costs.alone.add(seconds[n], n)
    assert tried[:3] == [4, 2, 1]
    assert tried.count(4) == 1, "clearly slower"
    assert tried.count(1) > 1, "it might be the fastest"
    assert tried[-1] == 2


# Text after text


def test_between_texts_nothing_is_forgotten() -> None:
    """Unlike what is kept in a file, which counts little when it is restored."""
    made, found = replayed(), []
    for _ in range(100):
        made.begin(10)
        found.append((made.state(), [made.controller.target.alone.time(n).n for n in range(1, 10)], made.rates()))
    assert found == 100 * found[:1]
    assert [(change.tokens, change.schedule) for change in made.controller.chooser.changes] == [(0, SYNC)]
    assert report(made.controller).predicted_tokens_per_s is None


def test_each_mode_of_sampling_has_its_own_acceptance_and_all_share_the_costs() -> None:
    made, means = pair(schedules=(ASYNC,)), {}
    for mode, acceptance in (("greedy", 0.9), ("coupled", 0.6), ("rejection", 0.2)):
        made.begin(10, mode=mode)
        prior = made.draft.acceptance.mean
        made.draft.learn_scores(scores(acceptance))
        means[mode] = made.draft.state()["acceptance"][mode]["mean"]
        assert abs(made.draft.acceptance.mean - acceptance) < abs(prior - acceptance)
    made.step(1, 0, 0.010)
    for run in (made, another_run(made, schedules=(ASYNC,))):
        for mode, mean in means.items():
            run.begin(10, mode=mode)
            assert run.draft.acceptance.mean == pytest.approx(mean)
            assert run.controller.costs.seconds(1) == 0.010


def test_with_a_remote_draft_the_target_is_first_measured_alone() -> None:
    """Otherwise nothing would show that the draft, on the same machine after all, slows it down."""
    made = pair(remote=True)
    made.begin(10)
    for _ in range(2):
        assert made.controller.mode == ALONE
        assert not made.draft.lookahead().allows(())
        made.step(1, 0, 0.010)
    assert made.controller.mode == ASYNC_MODE
    again = another_run(made, remote=True)
    again.begin(10)
    again.step(1, 0, 0.010)
    assert again.controller.mode == ASYNC_MODE, "what was learned counts as one measurement"


def test_no_turns_are_forecast_for_a_remote_draft() -> None:
    made = knowing(SLOW_TARGET, 0.1, 0.8, (ASYNC, OFF), remote=True)
    made.draft.costs.add_latency(1.0)
    assert made.rates().keys() == {ASYNC, OFF}


# From run to run


@pytest.mark.parametrize(("factor", "acceptance"), [(1.0, None), (2.0, None), (1.0, 0.1)])
def test_a_profile_that_wrongly_says_that_drafting_does_not_pay_is_found_out(
    learned: str, factor: float, acceptance: float | None
) -> None:
    target, draft = json.loads(learned)
    for kept in (target["costs"], draft["beside"]):
        kept["0"] = {n: [seconds * (factor if n != "1" else 1), spread] for n, (seconds, spread) in kept["0"].items()}
    if acceptance is not None:
        kept = draft["acceptance"]["greedy"]
        kept["accepted"], kept["mean"] = [acceptance] * len(kept["accepted"]), acceptance
    made = pair()
    assert made.restore([target, draft])
    found = [made.replay(TWO_CORES, 0.9, 256, seed) for seed in range(2)]
    assert (found[0].tokens_in[OFF] == 0) is ((factor, acceptance) == (1.0, None))
    assert found[0].rate > 0.9 / TWO_CORES.target_s[0]
    assert found[1].tokens_in[SYNC] > 0.85 * 256, "at least in the next text"
    assert made.controller.target.alone.seconds(4) == pytest.approx(TWO_CORES.target_s[3], rel=0.05)


def test_the_costs_of_each_number_of_cores_are_kept() -> None:
    made = pair()
    for n_cores, seconds in ((0, 0.010), (3, 0.030)):
        made.controller.use_cores(n_cores)
        made.begin()
        for _ in range(9):
            made.controller.target.alone.add(1, seconds)
            made.draft.beside.add(1, 2 * seconds)
            made.draft.costs.alone.add(seconds / 2)
    again = another_run(made)
    for n_cores, seconds in ((3, 0.030), (0, 0.010)):
        again.controller.use_cores(n_cores)
        again.begin()
        found = again.controller.target.alone.time(1).value, again.draft.beside.time(1).value
        assert (*found, again.draft.costs.alone.token_s) == pytest.approx((seconds, 2 * seconds, seconds / 2))


def test_what_is_inferred_from_other_cores_is_known_and_not_kept() -> None:
    made = pair()
    for n in (1, 4):
        made.controller.target.alone.add(n, 0.01 * n)
    made.draft.costs.alone.add(0.002)
    made.controller.use_cores(1)
    made.begin()
    alone = made.controller.target.alone
    assert (alone.time(4).value, made.draft.costs.alone.token_s) == pytest.approx((0.07, 0.0035))
    alone.add(1, 0.02)
    target, draft = made.state()
    assert [*target["costs"]["1"]] == ["1"]
    assert not draft["costs"]["times"]["1"][0]["by_threads"]


OF_TARGET, OF_DRAFT, OF_ACCEPTANCE = (0,), (1,), (1, "acceptance", "greedy")
TIMES = (1, "costs", "times", "0", 0)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (OF_TARGET, "costs", "much"), (OF_TARGET, "costs", {"-1": {}}), (OF_TARGET, "costs", {"all": {}}),
        (OF_TARGET, "costs", {str(MAX_THREADS + 1): {}}), (OF_TARGET, "costs", {"0": {"1": -1}}),
        (OF_TARGET, "costs", {"0": {"1": ["0.1", 0]}}), (OF_TARGET, "costs", {"0": {"1": [0.1, True]}}),
        (OF_TARGET, "costs", {"0": {"0": [0.1, 0]}}), (OF_TARGET, "bias", 10**400), (OF_TARGET, "looked_up", None),
        (OF_TARGET, "bias", KeyError),
        (OF_DRAFT, "costs", "much"), (OF_DRAFT, "beside", {"0": {"0": [0.1, 0]}}), (OF_DRAFT, "beside", 7),
        ((1, "costs", "times"), "0", [{}, {}, {}]), ((1, "costs", "times"), "0", []),
        (TIMES, "pair", {"3": [0.1, 0]}), (TIMES, "by_sequences", {"65": [1.0, 0.1]}), (TIMES, "by_threads", KeyError),
        ((1, "costs"), "read_s", True), ((1, "costs"), "read_s", 10**400), ((1, "costs"), "latency_s", math.nan),
        (OF_DRAFT, "acceptance", {"greedy": {"mean": 7}}), (OF_DRAFT, "bias", {"sync": None}),
        (OF_DRAFT, "bias", {"sync": 1, "async": 10**400}), (OF_DRAFT, "bias", KeyError),
        (OF_ACCEPTANCE, "ranks", [2.0, 0, 0]), (OF_ACCEPTANCE, "ranks", []), (OF_ACCEPTANCE, "shares", [0.5] * 9),
        (OF_ACCEPTANCE, "mean", math.nan), (OF_ACCEPTANCE, "accepted", [-0.1] * 9), (OF_ACCEPTANCE, "edges", [1.0]),
        (OF_DRAFT, "probes", [1]), (OF_DRAFT, "probes", [-1, 0]), (OF_DRAFT, "probes", [0, "much"]),
    ],
)  # fmt: skip
def test_nothing_of_a_damaged_state_is_restored(place: Sequence[Any], name: str, value: object) -> None:
    state = knowing(FLAT, acceptance=0.5).state()
    assert pair().restore(json.loads(json.dumps(state)))
    made, part = pair(), state
    for key in place:
        part = part[key]
    part[name] = value
    if value is KeyError:
        del part[name]
    which = (made.controller.target, made.draft)[place[0]]
    before = which.state()
    assert not which.restore(state[place[0]])
    assert which.state() == before


def test_the_budget_and_the_horizon_follow_the_lengths_of_earlier_texts() -> None:
    """Also of a text of an earlier run that was its only one."""
    made = pair()
    for n_tokens, likely in ((20, DEFAULT.horizon), (20, (DEFAULT.horizon + 20) / 2), (0, (DEFAULT.horizon + 40) / 3)):
        made.begin(10)
        assert made.controller.target.length.value == pytest.approx(likely)
        for _ in range(n_tokens):
            made.step(1, 0, 0.1)
        made.controller.target.ended(n_tokens)
    made.begin(10)
    assert made.controller.target.length.value == pytest.approx((DEFAULT.horizon + 40) / 3), "nothing was written"
    made.step(1, 0, 0.1)
    assert made.controller.chooser.budget.credit_s / 0.1 == pytest.approx(
        DEFAULT.share * (DEFAULT.horizon + 40) / 3, 0.01
    )
    first = pair()
    first.begin(10)
    first.step(20, 0, 0.1)
    first.controller.target.ended(20)
    again = another_run(first)
    again.begin(10)
    assert again.controller.target.length.value == pytest.approx((DEFAULT.horizon + 20) / 2)


def test_a_draft_of_which_nothing_is_known_has_the_budget_of_a_first_text() -> None:
    """Also where T(n) is known, from the target alone or from another draft."""
    made, found = pair(), []
    for n_scored in (0, 0, 24, 0):
        made.begin(10)
        made.step(DEFAULT.horizon, 0, 0.1)
        found.append(made.controller.chooser.budget.credit_s / 0.1)
        made.draft.learn_scores(scores(0.5, n_scored))
    assert found == pytest.approx([DEFAULT.first, DEFAULT.first, DEFAULT.first, DEFAULT.later], abs=0.01)


# Probes


def unsure(target_s: dict[int, float]) -> Pair:
    """A draft that may pay or not, in a text whose prompt is too long to try it."""
    made = knowing(target_s, 0.01, 0.3, ALL)
    made.begin(400)
    n_probe(made, 16)
    return made


def n_probe(made: Pair, n_steps: int) -> int:
    """After so many steps of the target alone: how many tokens the draft shall decode to be scored on them."""
    for _ in range(n_steps):
        made.step(1, 0, 0.1)
    return made.draft.n_probe


def probe(made: Pair, accepted: float, n_tokens: int, seconds: float, *, whole: bool) -> None:
    made.controller.plan(
        [text()], [Proposal(draft="draft", probe=Probe(scores(accepted, 12), n_tokens, seconds, whole))]
    )


EASY = {1: 0.1, 2: 0.12, 4: 0.13}


def test_a_draft_that_may_pay_is_probed_when_nothing_was_scored_for_long_and_the_credit_covers_it() -> None:
    made = unsure(EASY)
    assert (made.controller.mode, made.draft.n_probe) == (ALONE, 24)
    made.draft.learn_scores(scores(0.3, 2))
    assert n_probe(made, 1) == 0
    assert n_probe(made, 16) == 24
    credit_s = made.controller.chooser.budget.credit_s
    probe(made, 0.3, 24, 0.24, whole=False)
    assert made.controller.chooser.budget.credit_s == pytest.approx(credit_s - 0.24)
    assert made.draft.costs.read_s == 0.01
    assert n_probe(made, 200) == 0
    assert n_probe(made, 800) >= 16, "a share of 100 s"


def test_tokens_that_the_lookup_finds_do_not_bring_the_next_probe_nearer() -> None:
    made = unsure(EASY)
    made.draft.learn_scores(scores(0.3, 2))
    for _ in range(16):
        made.step(9, 8, 0.2, origin=Origin.LOOKUP)
    assert made.draft.n_probe == 0
    assert n_probe(made, 1) == 24


def test_a_later_text_may_be_short_so_that_its_first_probe_is_a_small_share_of_it() -> None:
    made = unsure(EASY)
    made.draft.learn_scores(scores(0.3, 24))
    made.draft.learn_draft(24, 0.48)
    made.begin(400)
    made.controller.chooser.budget.spend(-0.4)
    assert n_probe(made, 110) == 0, "2.4 tokens' time, in which the draft reads 24, of 110"
    assert n_probe(made, 15) == 24


def test_probes_become_rarer_after_texts_in_which_they_found_that_drafting_does_not_pay() -> None:
    """Also if each text is written by another process. A draft that has become better is probed in each text again."""
    made = knowing(EASY, 0.01, 0.0, ALL)

    def probed(accepted: float) -> bool:
        nonlocal made
        state, made = made.state(), knowing(EASY, 0.01, 0.0, ALL)
        assert made.restore(state)
        made.begin(10)
        made.controller.chooser.budget.spend(-99.0)
        found = False
        for _ in range(200):
            if n := made.draft.n_probe:
                found = True
                probe(made, accepted, n, 0.01, whole=True)
            made.step(1, 0, 0.1)
        return found

    often, rarely = ([probed(0.0) for _ in range(n)] for n in (6, 30))
    assert all(often)
    assert 5 < sum(rarely) < 15
    while not probed(0.9):
        pass
    assert made.draft.state()["probes"][0] == 0


@pytest.mark.parametrize(("target_s", "pays"), [(EASY, True), ({n: 0.15 * n - 0.05 for n in range(1, 10)}, False)])
def test_a_draft_is_not_asked_where_it_cannot_pay(target_s: dict[int, float], pays: bool) -> None:
    made, asked = unsure(target_s), False
    made.controller.chooser.budget.spend(-99.0)
    for _ in range(200):
        asked = asked or made.draft.n_probe > 0
        made.step(1, 0, 0.1)
    assert (asked or bool(made.controller.chooser.changes)) is pays


def test_a_probe_tells_the_drafts_time_if_no_warm_up_did() -> None:
    made = pair()
    made.begin(10)
    assert n_probe(made, 20)
    assert made.controller.prospects.forecasts().keys() == {ALONE}
    probe(made, 0.9, 24, 0.24, whole=False)
    assert made.draft.costs.alone.token_s == pytest.approx(0.01 / DEFAULT.read)
    assert set(made.rates()) == set(ALL)
    assert not made.draft.state()["costs"]["times"]["0"][0]["by_threads"], "it is inferred"


# Batches of arbitrary candidates. T(1) is 0.1 s, and drafting does not pay


T = {1: 0.1, 2: 0.12, 4: 0.3, 8: 0.8}


def begun(schedules: Sequence[Schedule] = ALL, n_room: int | None = None, known: int = 2) -> Pair:
    """T(`known`) is known from an earlier run, and may be wrong; no draft was ever scored."""
    earlier = pair(schedules=schedules)
    earlier.begin(10)
    earlier.step(1, known - 1, T[known])
    made = another_run(earlier, schedules=schedules)
    made.begin(10, n_room)
    made.draft.learn_warmup(1, 0.05)
    return made


def sizes(made: Pair, n_steps: int) -> list[int]:
    """Sizes of the batches that are planned, without candidates of the draft."""
    found = []
    for _ in range(n_steps):
        plan = made.plan()
        found.append(n := len(plan.candidates) + 1)
        made.step(1, n - 1, T[n], origin=plan.origin)
    return found


@pytest.mark.parametrize(
    ("schedules", "n_room", "found"),
    [
        (ALL, None, [1, 1, 4, *[1] * 17]),  # four tokens after two decodes of one; then the draft is tried
        ((SYNC,), None, [1] * 20),  # where there is no choice
        ((OFF,), None, [1] * 20),
        (ALL, 3, [1, 1, 1]),  # a credit of 0.15, 0.8 and 1.4 tokens
        (ALL, 16, [1, 1, 2]),
        (ALL, 28, [1, 1, 4]),
    ],
)
def test_typical_sizes_are_measured_if_the_credit_covers_it(
    schedules: Sequence[Schedule], n_room: int | None, found: list[int]
) -> None:
    assert sizes(begun(schedules, n_room), len(found)) == found


def test_these_tokens_are_arbitrary_unless_the_text_itself_has_as_many() -> None:
    for n_found, origin in ((0, Origin.ANY), (2, Origin.ANY), (3, Origin.LOOKUP)):
        made = begun()
        sizes(made, 2)
        plan = made.plan(found=[(0.01, 9.0)] * n_found)
        assert (len(plan.candidates), plan.origin) == (3, origin)


def test_beside_another_program_nothing_is_measured_on_purpose() -> None:
    """It would teach nothing, and use up the credit."""
    made = begun()
    sizes(made, 2)
    made.controller.target.is_disturbed = True
    assert not made.plan().candidates
    made.controller.target.is_disturbed = False
    assert len(made.plan().candidates) == 3


def test_beside_another_program_one_token_is_not_measured_in_turns_either() -> None:
    made = knowing(FLAT, 0.001, 0.9, schedules=(SYNC, OFF))
    made.use(SYNC_MODE)
    made.controller.target.alone.is_doubted = True
    assert not made.plan([1.0] * 4).candidates
    made.controller.target.is_disturbed = True
    assert made.plan([1.0] * 4).candidates


def test_the_time_of_a_probe_beside_another_program_is_not_learned() -> None:
    made = knowing(FLAT, 0.005)
    for is_disturbed, read_s in ((True, 0.001), (False, 0.002)):
        made.controller.target.is_disturbed = is_disturbed
        made.controller.plan([text()], [Proposal(probe=Probe(scores(0.5, 24), 24, 24 * 0.002, True), draft="draft")])
        assert made.draft.costs.read_s == pytest.approx(read_s)
        assert made.draft.acceptance.n_scored >= 24, "which of its tokens are right is known all the same"


@pytest.mark.parametrize(("apart", "is_slower"), [(False, True), (True, False)])
def test_what_the_lookup_finds_counts_against_a_draft_that_slows_its_steps_down(
    *, apart: bool, is_slower: bool
) -> None:
    made = knowing(FLAT, 0.002, 0.8, schedules=ALL, separate_devices=apart)
    before = made.rates()
    made.controller.target.n_found = Mean(value=3.0, n=16)
    now = made.rates()
    assert now[OFF] == before[OFF]
    assert (now[ASYNC] < 0.8 * before[ASYNC]) is is_slower


def test_steps_of_the_lookup_beside_a_draft_use_up_the_credit() -> None:
    made = knowing(FLAT, 0.002, 0.8, schedules=ALL)
    made.use(ASYNC_MODE)
    budget = made.controller.chooser.budget
    lost = []
    for decode_s in (FLAT[4], 2 * FLAT[4]):
        before = budget.credit_s
        made.step(4, 3, decode_s, origin=Origin.LOOKUP)
        lost.append(before - budget.credit_s)
    assert lost[0] < 0.001
    assert lost[1] == pytest.approx(FLAT[4], rel=0.2)


def test_another_run_measures_two_tokens_to_see_whether_what_is_known_holds() -> None:
    again = begun(known=4)
    again.draft.learn_scores([(1.0, False)] * 24)
    for expected in ([1, 1, 2, *[1] * 17], [1] * 20):  # once in a run
        again.begin(10)
        assert sizes(again, 20) == expected


def test_a_first_text_learns_only_from_candidates_that_may_be_right() -> None:
    made = pair()
    made.begin(10)
    made.draft.learn_warmup(1, 0.05)
    assert sizes(made, 20) == [1] * 20


# Outcomes prepared

_CARDS = times({1: 25, 2: 26, 4: 29, 8: 38})
CHEAP = Machine(_CARDS, 0.008, _CARDS, 0.008, branch_s=[0.008 + 0.0002 * n for n in range(9)])
DEAR = replace(CHEAP, branch_s=[0.008 * (n + 1) for n in range(9)])


def on(machine: Machine, schedules: tuple[Schedule, ...] = (ASYNC,), mode: str = "greedy", **options: Any) -> Pair:
    """What a machine costs is known, in a text."""
    made = pair(schedules=schedules, separate_devices=True, **{"branches": None, **options})
    made.begin(mode=mode)
    machine.teach(made.draft)
    made.draft.learn_scores([(1.0, i % 5 > 0) for i in range(100)])
    made.begin(mode=mode)
    return made


def n_branches(made: Pair) -> int:
    return made.draft.lookahead().n_branches


def test_as_many_outcomes_as_pay_are_prepared_or_as_many_as_were_given() -> None:
    made = on(CHEAP)
    assert n_branches(made) in (4, 8)
    assert made.controller.rate > 1.1 * on(DEAR).controller.rate
    assert n_branches(on(DEAR)) == 0
    assert [n_branches(on(DEAR, branches=n)) for n in (0, 3, 8)] == [0, 3, 8]
    for rank, is_right in ((-1, False), (0, True)):
        for _ in range(200):
            made.draft.acceptance.add_rank(rank)
        made.begin()
        assert (n_branches(made) > 0) is is_right


def test_where_a_concurrent_draft_cannot_pay_outcomes_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target waits meanwhile: five forecasts take several milliseconds."""
    counts = Counter[int]()

    def counted(target_s: Sequence[float], sequences_s: Sequence[float], *more: Any) -> Forecast:
        counts[len(sequences_s) - 1] += 1
        return overlapped(target_s, sequences_s, *more)

    monkeypatch.setattr("duo.speculation.draft_estimates.overlapped", counted)
    shared = replace(CHEAP, concurrent_target_s=[4 * seconds for seconds in _CARDS])
    made = on(shared, ALL)
    assert made.controller.rate > 0
    assert set(counts) == {0}
    assert n_branches(on(shared)) > 0, "it was asked for"
    counts.clear()
    on(CHEAP, ALL)
    assert set(counts) == {0, 1, 2, 4, 8}


@pytest.mark.parametrize("branches", [None, 8])
def test_no_outcomes_are_prepared_where_that_is_impossible(branches: int | None) -> None:
    impossible = (
        on(CHEAP, (SYNC,), branches=branches),
        on(CHEAP, mode=REJECTION, branches=branches),
        on(CHEAP, branches=branches, remote=True),
    )
    assert [n_branches(made) for made in impossible] == [0, 0, 0]
    impossible[1].begin()
    assert n_branches(impossible[1]) > 0, "in the next text again"


def test_what_is_known_of_branches_is_reported_and_kept() -> None:
    made = on(CHEAP)
    for rank in (0, 2, -1):
        made.draft.acceptance.add_rank(rank)
    found = report(made.controller)
    assert (found.n_branches, found.ranks) == (n_branches(made), made.draft.lookahead().ranks)
    assert found.draft_ms_by_sequences == pytest.approx([1000 * s for s in CHEAP.branch_s])
    another = another_run(made, schedules=(ASYNC,), separate_devices=True, branches=None)
    another.begin()
    assert n_branches(another) > 0
    assert another.draft.lookahead().ranks == pytest.approx(made.draft.lookahead().ranks)
    for _ in range(20):
        made.draft.learn_draft(1, 0.5, 9)
    assert made.draft.costs.concurrent.token_s == pytest.approx(0.008)


# Times of a clock that jumps: the machine was suspended, or a virtual one paused

JUMP = 64.0


def longest(state: Any) -> float:
    """The longest time that is kept of the target."""
    kept = [*state[0]["costs"].values(), *state[1]["beside"].values()]
    return max([float(seconds) for each in kept for seconds, _ in each.values()])


@pytest.mark.parametrize("n_candidates", [0, 3, 7])
def test_a_step_during_which_the_machine_was_suspended_is_not_learned(n_candidates: int) -> None:
    made = pair()
    made.controller.target.warm_s = 0.012
    made.begin(10)
    made.step(1, n_candidates, JUMP)  # the first of its size
    for _ in range(2):
        made.step(1, 0, 0.010)
        made.step(1, n_candidates, JUMP)
    assert made.controller.target.alone.time(1).value == pytest.approx(0.010)
    assert max(made.controller.target.alone.curve(9)) < 1
    assert longest(made.state()) < 1


def test_a_machine_that_has_become_a_hundred_times_slower_is_noticed() -> None:
    """Its weights are read from the disk again for every token."""
    made = pair()
    made.begin(10)
    for seconds in [0.02] * 8 + [3.0] * 8:
        made.step(1, 0, seconds)
    assert made.controller.target.alone.time(1).value == pytest.approx(3.0)


def test_times_of_a_draft_that_was_suspended_are_not_learned() -> None:
    made = replayed()
    costs = made.draft.costs
    before = costs.concurrent.token_s, costs.alone.token_s, costs.read_s
    made.use(ASYNC_MODE)
    made.draft.learn_draft(1, JUMP)
    made.draft.learn_draft(1, before[0])
    probe(made, 1.0, 24, 24 * JUMP, whole=False)
    assert (costs.concurrent.token_s, costs.alone.token_s, costs.read_s) == pytest.approx(before)
    made.draft.learn_draft(0, 0.0)  # of a remote draft: it was made of what it had already decoded
    made.draft.learn_draft(4000, 4000 * costs.read_s)
    assert costs.read_s == pytest.approx(before[2]), "a long text may take as long"


@pytest.mark.parametrize("size", ["1", "5"])
def test_such_a_time_in_a_profile_is_found_out_by_the_first_decode_of_its_size(learned: str, size: str) -> None:
    target, draft = json.loads(learned)
    target["costs"]["0"][size] = [JUMP, 0.1]
    made = pair()
    assert made.restore([target, draft])
    made.begin(10)
    made.step(1, int(size) - 1, 0.010)
    assert made.controller.target.alone.time(int(size)).value == pytest.approx(0.010)
    assert 0 < made.draft.costs.alone.token_s < 1, "it is not scaled"


# Several drafts


def two(first_s: float, second_s: float, acceptance: tuple[float, float]) -> tuple[Controller, list[DraftEstimates]]:
    """Of two drafts, and of the target beside them, all is known."""
    controller = Controller()
    drafts = [DraftEstimates(controller.target, 8, N_AHEAD, name=name) for name in ("first", "second")]
    controller.begin(drafts, 1, sampling="greedy")
    for draft, draft_s, share in zip(drafts, (first_s, second_s), acceptance, strict=True):
        replace(TWO_CORES, draft_s=draft_s, concurrent_draft_s=1.5 * draft_s).teach(draft)
        draft.learn_scores(scores(share))
    return controller, drafts


def go_on(controller: Controller, n_steps: int) -> Counter[str]:
    """Steps of the mode that is chosen, at the times and with the gains that are expected of it; the drafts used."""
    used = Counter[str]()
    for _ in range(n_steps):
        used[controller.mode.draft] += 1
        draft, n, target_s = controller.draft, 0, TWO_CORES.target_s
        n_tokens, drafting_s = 1, 0.0
        if draft is not None:
            n, drafting_s = 2, 2 * draft.token_s * (controller.schedule is SYNC)
            n_tokens += round(n * draft.acceptance.mean)
            target_s = TWO_CORES.concurrent_target_s if controller.schedule is ASYNC else target_s
        controller.learn([written(n_tokens)], StepCost(n, target_s[n], target_s[n] + drafting_s))
    return used


@pytest.mark.parametrize("better", ["first", "second"])
def test_of_two_drafts_the_better_one_is_used_and_dropped_when_it_becomes_useless(better: str) -> None:
    """A draft beside the MTP layer of its target. Whatever is known of T(n) is known of it for both."""
    controller, (first, second) = two(0.010, 0.010, (0.9, 0.3) if better == "first" else (0.3, 0.9))
    used = go_on(controller, 60)
    assert used[better] > 40
    good, bad = (first, second) if better == "first" else (second, first)
    good.learn_scores(scores(0.0, 200))
    bad.learn_scores(scores(0.9, 400))
    go_on(controller, 30)
    assert go_on(controller, 60)[bad.name] > 50
    assert controller.target.alone is first.target.alone is second.target.alone


def test_a_draft_that_is_slower_is_not_preferred_for_its_acceptance() -> None:
    controller, _ = two(0.005, 0.060, (0.7, 0.8))
    assert go_on(controller, 60).most_common(1)[0][0] == "first"


def test_a_draft_beside_the_one_in_use_is_probed_once_in_a_text() -> None:
    controller, (first, second) = two(0.010, 0.010, (0.9, 0.3))
    go_on(controller, 20)
    assert controller.draft is first
    n_probed = 0
    for _ in range(100):
        second.n_unscored += 40
        go_on(controller, 1)
        if second.n_probe and controller.draft is first:
            n_probed += 1
            controller.plan([text()], [Proposal(draft="second", probe=Probe(scores(0.3, 16), 16, 0.02, False))])
    assert n_probed == 1


def test_what_was_learned_beside_peers_that_are_gone_is_forgotten() -> None:
    """A peer says its name: a new one with each connection is no growing memory, and no slower T(n)."""
    controller = Controller()
    controller.begin([], 1)
    for i in range(40):
        draft = DraftEstimates(controller.target, 8, N_AHEAD, name=f"peer {i}", remote=True)
        controller.use([draft], 10)
        draft.beside.add(3, 0.1)
    assert len(controller.target.alone.relatives) <= 2
    assert len(controller.known) <= 2


def test_the_tokens_of_a_step_that_teaches_nothing_are_new_to_the_draft() -> None:
    """The first step of a text reads the prompt's end. A draft that counts one too few reads its whole prompt twice."""
    made = pair()
    made.begin(40)
    made.controller.learn([written(1)], None)
    assert made.draft.n_unread == 41


def test_decodes_beside_another_program_are_not_learned_and_exclude_no_mode() -> None:
    """Decodes take twice as long, in which each thread computes for half of the time."""
    made = knowing(FLAT, 0.002, 0.9, schedules=(SYNC, OFF))
    controller = made.controller
    for _ in range(40):
        controller.learn([written(4)], StepCost(3, FLAT[4], FLAT[4] + 0.006, cpu_s=FLAT[4]))
    assert controller.schedule is SYNC
    for _ in range(40):
        controller.learn([written(4)], StepCost(3, 2 * FLAT[4], 2 * FLAT[4] + 0.012, cpu_s=FLAT[4]))
    assert controller.schedule is SYNC
    assert controller.target.alone.seconds(4) == pytest.approx(FLAT[4], rel=0.2)


def test_other_threads_of_the_process_do_not_make_later_decodes_seem_disturbed() -> None:
    """Another client's prompt is tokenised meanwhile."""
    made = knowing(FLAT, schedules=(OFF,))
    for share in [2.0] * 40 + [1.0] * 40:
        made.controller.learn([written(1)], StepCost(0, FLAT[1], FLAT[1], cpu_s=share * FLAT[1]))
        assert not made.controller.target.is_disturbed


def test_what_was_learned_beside_another_program_is_scaled_when_that_ends() -> None:
    made = knowing(SLOW_TARGET, schedules=(OFF,))
    controller = made.controller
    for cores, n in ((1, 4), (2, 0)):
        decode_s = SLOW_TARGET[n + 1] / cores
        controller.learn([written(1)], StepCost(n, decode_s, decode_s, cpu_s=cores / 2 * decode_s))
    assert controller.target.alone.seconds(9) == pytest.approx(SLOW_TARGET[9] / 2, rel=0.1)
