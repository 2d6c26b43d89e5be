"""The bars of the policy, in virtual time on recorded machines: see benchmarks/regret.py."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.models import PAIRS, prompt_files
from benchmarks.regret import FOLDER, LETTERS, N_MAX, N_TOKENS, Case, Regret, cases, judge, late, texts, verdicts
from duo.spec.constants import DEFAULT
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule
from duo.spec.simulate import Machine, Replay

FLAT = (0.1,) * (N_MAX + 1)


def case(machine: Machine, *, right: bool) -> Case:
    """Two texts in which every prediction is right, or none is."""
    return Case("m/p", machine, (lambda _: (9.0, right),) * 2, apart=False, config=DEFAULT)


def regret(gain: float, cold: float = 1.0, late: float = 1.0, warm: float = 1.0) -> Regret:
    policy = Policy(4, 4)
    return Regret("m/p", 0, N_TOKENS, Schedule.OFF, gain, cold, late, late, warm, (policy, policy))


# The bars


def test_the_policy_meets_the_bars() -> None:
    """Change a constant or a rule of the policy, and this says what it costs."""
    found = [each for case in cases() for each in judge(case, N_TOKENS, n_seeds=1)]
    assert [str(verdict) for verdict in verdicts(found) if not verdict.passed] == []


def test_outcomes_are_prepared_on_devices_apart_and_not_on_shared_cores() -> None:
    """Not after the first text."""
    opened = dict.fromkeys(("two-cards/draft-8ms", "cores"), 0)
    for found in cases(n_texts=2):
        name = "cores" if "-cores/" in found.name else found.name
        if name in opened:
            policy = found.policy((Schedule.ASYNC,))
            found.replay(policy, 0, N_TOKENS, 0)
            opened[name] += found.replay(policy, 1, N_TOKENS, 0).n_opened
    assert opened["two-cards/draft-8ms"] > opened["cores"] == 0


def test_a_policy_without_a_budget_misses_them() -> None:
    spendthrift = replace(DEFAULT, advance=1000.0, time_share=1.0)
    found = [each for case in cases(["m1-pro"], spendthrift, n_texts=2) for each in judge(case, N_TOKENS, n_seeds=1)]
    assert not all(verdict.passed for verdict in verdicts(found) if verdict.figure)


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (0, [regret(1.0, cold=0.97), regret(1.0, cold=0.97), regret(1.0)]),
        (1, [regret(1.0)] * 9 + [regret(1.0, cold=0.8)]),
        (2, [regret(1.005, warm=0.98)]),
        (3, [regret(1.0)] * 9 + [regret(1.0, warm=0.8)]),
        (4, [regret(2.0, late=1.79, warm=2.0)]),
        (5, [regret(2.0, late=1.81, warm=1.93)]),
    ],
)
def test_each_bar_is_about_its_own_texts(place: int, found: list[Regret]) -> None:
    missed = [i for i, verdict in enumerate(verdicts(found)) if verdict.passed is False]
    assert missed == [place]


# The judge


def test_hindsight_is_the_target_alone_if_the_draft_is_never_right() -> None:
    slower = tuple(1.1 * seconds for seconds in FLAT)
    best, *rates = case(Machine(FLAT, 0.01, slower, 0.01, read_s=0.001), right=False).fixed(0, N_TOKENS)
    assert (best, rates) == (Schedule.OFF, [10.0, 10.0])


def test_hindsight_knows_the_costs_and_that_the_draft_is_always_right() -> None:
    """At a = 0.7, which a policy assumes at first, no candidate would pay."""
    costly = tuple(0.1 + 0.05 * n for n in range(N_MAX + 1))
    best, rate, late_rate = case(Machine(costly, 0.03, FLAT, 9.0), right=True).fixed(0, N_TOKENS)
    assert best is Schedule.SYNC
    assert rate == pytest.approx(17 / (costly[16] + 16 * 0.03), rel=0.06)
    assert late_rate == pytest.approx(rate, rel=0.06)


def test_a_warm_policy_has_seen_other_texts() -> None:
    machine = Machine(FLAT, 0.01, FLAT, 0.02, read_s=0.001)
    for found in judge(case(machine, right=True), N_TOKENS, n_seeds=1):
        assert 1 < found.cold < found.warm <= found.gain * 1.05


def test_seeds_differ_only_in_what_is_measured() -> None:
    machine = Machine(FLAT, 0.05, FLAT, 0.08, read_s=0.001, noise=0.3, spikes=0.1)
    first, other = (list(judge(case(machine, right=True), 32, 2))[i] for i in (0, 2))
    assert (first.text, first.gain) == (other.text, other.gain)
    assert first.policies[0].alone.curve(1) != other.policies[0].alone.curve(1)


def test_the_second_half_begins_with_the_step_that_reaches_it() -> None:
    run = Replay(8, 9.0, ends=[(2, 1.0), (5, 3.0), (8, 9.0)])
    assert late(run) == pytest.approx((8 - 5) / (9 - 3))


# The files


def test_there_is_a_trace_of_each_prompt() -> None:
    for path in (FOLDER / "traces").glob("*.json"):
        assert len(texts(path.stem)) == len(prompt_files(PAIRS[path.stem][2]))
    document = json.loads((FOLDER / "traces" / "smollm2-f16.json").read_text(encoding="utf-8"))
    assert set("".join(document.values()).lower()) <= set(LETTERS)
