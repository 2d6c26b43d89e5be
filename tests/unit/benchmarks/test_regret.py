"""The judge of the policy in virtual time: benchmarks/regret.py, its oracle and its cases."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import pytest

from benchmarks.models import PAIRS, prompt_files
from benchmarks.oracle import N_MAX, N_PROMPT, OFF, Best, Case, best, fixed, in_turns, late
from benchmarks.regret import FOLDER, LETTERS, N_SHORT, WRONG, Judged, Run, compared, each_of, judge, tables, verdicts
from benchmarks.runner import Verdict
from benchmarks.samples import (
    ACCEPTANCES,
    DRAFTS,
    N_TEXTS,
    N_TOKENS,
    cases,
    pairs,
    random_machine,
    slower,
    successive,
    texts,
    tilted,
    with_batches,
    with_draft,
    with_pair,
)
from benchmarks.virtual import Replay, recorded, replay
from duo.diagnose.machine_file import read_machine
from duo.spec.pair import Machine
from duo.spec.policy import Decision
from duo.spec.schedule import Schedule
from duo.spec.types import Proposal
from tests.unit.spec.machines import Fixed

FLAT = (0.1,) * (N_MAX + 1)
MACHINE = Machine(FLAT, 0.01, FLAT, 0.02, read_s=0.001, pair_s=0.012)
GOOD = Run("k=4", share=1.0, over_off=0.5)
HARMLESS = Run(OFF, share=1.0, over_off=1.0)


def case(machine: Machine, *, right: bool, n_texts: int = 2) -> Case:
    """Texts in which every prediction is right, or none is."""
    return Case("m/p", machine, (((9.0, right),),) * n_texts)


def judged(
    first: Run = GOOD, later: Run = GOOD, fifth: Run = GOOD, short: Run = GOOD, wrong: dict[str, float] | None = None
) -> Judged:
    runs = (first, later, later, later, fifth)
    return Judged("m/p", 0.1, None, runs, short, {**dict.fromkeys(WRONG, 1.0), **(wrong or {})})


def failed(found: Sequence[Verdict]) -> list[int]:
    return [i for i, verdict in enumerate(found) if verdict.passed is False]


# The bars


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ([0], [judged()] * 8 + [judged(first=Run("k=4", 0.9, 0.5))] * 2),
        ([1], [judged(first=Run("k=4", 0.95, 0.5))] * 3),
        ([2], [judged()] * 8 + [judged(fifth=Run("k=4", 0.96, 0.5))] * 2),
        ([3], [judged(fifth=Run("k=4", 0.98, 0.5))] * 3),
        ([4], [judged()] * 9 + [judged(first=Run(OFF, 0.94, 1.06))]),
        ([5], [judged()] * 9 + [judged(short=Run(OFF, 0.88, 1.12))]),
        ([6], [judged(later=Run(OFF, 0.98, 1.02))]),
        ([7], [judged(wrong={"T(n) halved": 0.94})] * 2),
        ([8], [judged(wrong={"T(n) doubled": 0.94})] * 2),
        ([9], [judged(wrong={"T(1) a third longer": 0.94})] * 2),
        ([10], [judged(wrong={"T(1) a quarter shorter": 0.94})] * 2),
        ([11], [judged(wrong={"accepted 0.1, not 0.9": 0.94})] * 2),
        ([12], [judged(wrong={"accepted 0.9, not 0.1": 0.94})] * 2),
        ([13], [judged(wrong={"all times doubled": 0.94})] * 2),
        ([], [judged(first=Run("k=4", 1.0, 1.2), short=Run("k=4", 1.0, 1.2), later=Run("k=4", 1.0, 1.2))]),
    ],
)
def test_each_bar_is_about_its_own_texts(place: list[int], found: list[Judged]) -> None:
    assert failed(verdicts(found, [1.0])) == place


def test_advice_within_three_per_cent_is_right() -> None:
    assert failed(verdicts([judged()], [1.0] * 96 + [0.98, 0.9, 0.9, 0.9])) == []
    assert failed(verdicts([judged()], [1.0] * 96 + [0.96] * 4)) == [14]


def test_what_no_run_is_about_is_not_measured() -> None:
    unknown = [i for i, verdict in enumerate(verdicts([judged()], [])) if verdict.passed is None]
    assert unknown == [4, 5, 6, 14]


def test_the_tables_have_a_row_for_each_group_profile_and_advice() -> None:
    found = [judged(), replace(judged(first=HARMLESS), name="m/q", acceptance=0.5)]
    lines = "\n".join(tables(found, [1.0, 0.9]))
    assert all(f"\n{name} " in lines for name in ("m/p", "m/q", "0.1, about", "0.5", "recorded", *WRONG))
    assert "advice of plan" in lines


# The oracle


def test_the_oracle_is_at_least_every_fixed_setting() -> None:
    found = next(each for each in cases(0, ["shapes"]) if each.name == "shapes/stepped-apart")
    text = found.texts[0]
    oracle, runs = best(found, text, 64), dict(fixed(found, text, 64))
    assert list(runs) == [*(f"k={k}" for k in range(1, N_MAX + 1)), "sync", "async", "prepared"]
    assert all(run.rate <= oracle.rate and late(run, 32) <= oracle.late for run in runs.values())
    assert oracle.rate == runs[oracle.setting].rate


def test_a_remote_draft_is_used_concurrently_only() -> None:
    found = case(replace(MACHINE, latency_s=0.02), right=True)
    assert [name for name, _ in fixed(found, found.texts[0], 16)] == ["async"]


def test_hindsight_is_the_target_alone_if_the_draft_is_never_right() -> None:
    found = case(MACHINE, right=False)
    oracle = best(found, found.texts[0], N_TOKENS)
    assert oracle.setting == OFF
    assert (oracle.rate, oracle.late) == pytest.approx((10, 10))


def test_hindsight_knows_that_the_draft_is_always_right() -> None:
    """At a = 0.7, which a policy assumes at first, no candidate would pay."""
    costly = tuple(0.1 + 0.05 * n for n in range(N_MAX + 1))
    found = case(Machine(costly, 0.03, FLAT, 9.0), right=True)
    oracle = best(found, found.texts[0], 17 * N_MAX)
    assert oracle.setting == "k=16"
    assert oracle.rate == pytest.approx(17 / (costly[16] + 16 * 0.03))


def test_taking_turns_costs_what_its_decodes_cost() -> None:
    """Three cycles of two candidates, the second after two that were accepted, and the last token without any."""
    text = ((1.0, True), (1.0, True), (1.0, True), (1.0, False), (1.0, False))
    found = in_turns(MACHINE, text, 2, 6)
    prompt_s, cycle_s = 0.01 + (N_PROMPT - 1) * 0.001, 0.1 + 0.01
    assert [tokens for tokens, _ in found.ends] == [3, 4, 5, 6]
    seconds = [prompt_s + cycle_s, 0.012 + cycle_s, 0.01 + 0.1, 0.1]  # near the end there is room for fewer
    assert found.seconds == pytest.approx(sum(seconds))


class Ending(Fixed):
    """Verifies no more than the text has room for."""

    def decide(self, n_room: int, drafted: Proposal, *others: Proposal) -> Decision:
        if len(drafted.guesses) >= n_room - 1:
            return Decision(n_room - 1)
        return super().decide(n_room, drafted)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_taking_turns_is_what_a_policy_with_fixed_settings_does(k: int) -> None:
    found = next(each for each in cases(0, ["zen5-2-cores"]) if each.name == "zen5-2-cores/tinyllama-f16")
    machine, text = with_pair(replace(found.machine, pair_s=0.0), 1.5), found.texts[0]
    expected = replay(Ending(k, k, Schedule.SYNC), machine, recorded(text), N_TOKENS, N_PROMPT)
    run = in_turns(machine, text, k, N_TOKENS)
    assert run.tokens == expected.tokens
    assert run.seconds == pytest.approx(expected.seconds)


def test_the_rate_from_a_token_on_begins_with_the_step_that_reaches_it() -> None:
    run = Replay(8, 9.0, ends=[(2, 1.0), (5, 3.0), (8, 9.0)])
    assert late(run, 4) == pytest.approx((8 - 5) / (9 - 3))
    assert late(run, 8) == 0


# The judge


def test_a_text_is_compared_with_the_oracle_and_with_the_target_alone() -> None:
    found = compared(case(MACHINE, right=True), Replay(30, 2.0), Best("k=4", 20.0, 20.0))
    assert (found.best, found.share) == ("k=4", 0.75)
    assert found.over_off == pytest.approx(2 / 3)


def test_a_later_text_begins_with_what_earlier_ones_have_taught() -> None:
    found = judge(case(MACHINE, right=True, n_texts=3))
    assert found.texts[0].share < found.texts[2].share
    assert found.short.share < found.texts[2].share
    assert set(found.wrong) == set(WRONG)
    assert len(found.details) == 3


def test_cases_are_disturbed_differently() -> None:
    noisy = replace(case(MACHINE, right=True), machine=replace(MACHINE, noise=0.3, spikes=0.1))
    curves = []
    for seed in (1, 2):
        policy = noisy.policy()
        replace(noisy, seed=seed).run(policy, noisy.texts[0], N_SHORT)
        curves.append(policy.alone.curve(1))
    assert curves[0] != curves[1]


def test_processes_keep_the_order() -> None:
    assert each_of(abs, [-3, 2, -1], 2) == each_of(abs, [-3, 2, -1], 1) == [3, 2, 1]


def test_outcomes_are_prepared_on_devices_apart_and_not_on_shared_cores() -> None:
    """Not after the first text."""
    opened = dict.fromkeys(("two-cards/draft-8ms", "cores"), 0)
    machines = ["two-cards", "avx2-2-cores"]
    for found in cases(0, machines)[: len(pairs(machines))]:
        name = "cores" if "-cores/" in found.name else found.name
        if name in opened:
            policy = found.policy((Schedule.ASYNC,))
            found.run(policy, found.texts[0], 128)
            opened[name] += found.run(policy, found.texts[1], 128).n_opened
    assert opened["two-cards/draft-8ms"] > opened["cores"] == 0


# The cases


def test_the_cases_have_each_pair_twice_and_each_value_equally_often() -> None:
    n_pairs = len(pairs())
    found = cases(3 * n_pairs)
    names = [each.name for each in found]
    assert len(found) == 3 * n_pairs
    assert all(names.count(name) == 3 for name, _ in pairs())
    assert all(len(each.texts) == N_TEXTS and each.machine.pair_s for each in found)
    others = found[n_pairs:]
    drafts = Counter(round(each.machine.draft_s / each.machine.target_s[0], 6) for each in others)
    accepted = Counter(each.acceptance for each in others)
    assert (set(drafts), set(accepted)) == (set(DRAFTS), set(ACCEPTANCES))
    assert all(max(counts) - min(counts) <= 1 for counts in (drafts.values(), accepted.values()))


def test_the_same_seed_has_the_same_cases() -> None:
    assert cases(0, ["shapes"], seed=3) == cases(0, ["shapes"], seed=3) != cases(0, ["shapes"], seed=4)


@pytest.mark.parametrize("acceptance", [0.1, 0.3, 0.5, 0.7, 0.85, 0.9, 0.95])
@pytest.mark.parametrize("name", ["smollm2-f16", "tinyllama-f16-stories-on-code"])
def test_a_synthetic_text_has_the_acceptance_asked_for(name: str, acceptance: float) -> None:
    text = tilted(texts(name), acceptance, 8000, seed=1)
    assert len(text) == 8000
    assert mean(right for _, right in text) == pytest.approx(acceptance, abs=0.02)


def test_a_synthetic_text_keeps_confidences_and_runs() -> None:
    """Right predictions are more confident than wrong ones, and follow each other more often than by chance."""
    text = tilted(texts("smollm2-f16"), 0.7, 8000, seed=1)
    assert mean(gap for gap, right in text if right) > 1.5 * mean(gap for gap, right in text if not right)
    after_right = [text[i][1] for i in range(1, len(text)) if text[i - 1][1]]
    assert mean(after_right) > 0.71


def test_too_few_texts_are_used_again_from_their_middle() -> None:
    recorded = texts("tinyllama-f16-stories")
    found = successive("tinyllama-f16-stories", 1)
    assert found[:3] == recorded[1:]
    assert found[3] == recorded[0]
    assert found[4] != recorded[1]
    assert sorted(found[4]) == sorted(recorded[1])


def test_another_draft_is_slower_in_all_it_does() -> None:
    machine = replace(MACHINE, branch_s=(0.02, 0.03))
    found = with_draft(machine, 0.2)
    factors = [found.draft_s / 0.01, found.concurrent_draft_s / 0.02, found.read_s / 0.001, found.pair_s / 0.012]
    assert [*factors, found.branch_s[1] / 0.03] == pytest.approx([2] * 5)
    assert found.target_s == machine.target_s


def test_a_measured_time_for_two_tokens_is_kept() -> None:
    assert with_pair(MACHINE, 1.5).pair_s == 0.012
    assert with_pair(replace(MACHINE, pair_s=0.0), 1.5).pair_s == 0.015


def test_wrong_machines() -> None:
    halved, doubled = with_batches(MACHINE, 0.5), slower(MACHINE, 2.0)
    assert (halved.target_s[0], halved.target_s[1], halved.concurrent_target_s[16]) == (0.1, 0.05, 0.05)
    assert (doubled.target_s[0], doubled.concurrent_target_s[1], doubled.draft_s) == pytest.approx((0.2, 0.2, 0.02))
    assert doubled.pair_s == pytest.approx(0.024)


def test_random_machines_have_all_kinds_of_drafts() -> None:
    found = [random_machine(seed) for seed in range(100)]
    ratios = [machine.draft_s / machine.target_s[0] for machine, _ in found]
    assert 0.02 <= min(ratios) < 0.05 < 0.5 < max(ratios) <= 0.8
    assert 0.3 <= min(acceptance for _, acceptance in found) < max(acceptance for _, acceptance in found) <= 0.95
    assert 20 < sum(machine.concurrent_target_s == machine.target_s for machine, _ in found) < 50


# The files


def test_the_shapes_are_what_they_are_called() -> None:
    curves = {name: pair.machine.target_s for name, pair in read_machine(FOLDER / "shapes.json", N_MAX).items()}
    assert curves["flat"][16] < 1.05 * curves["flat"][0]
    assert curves["steep"][9] == pytest.approx(10**0.9 * curves["steep"][0], rel=0.01)
    assert [n for n in range(2, 18) if curves["stepped"][n - 1] > 1.2 * curves["stepped"][n - 2]] == [2, 5, 9]
    assert curves["dip"][1] > curves["dip"][3]
    assert curves["faster-two"][1] == pytest.approx(0.91 * curves["faster-two"][0])


def test_there_is_a_trace_of_each_prompt() -> None:
    for path in (FOLDER / "traces").glob("*.json"):
        assert len(texts(path.stem)) == len(prompt_files(PAIRS[path.stem][2]))
    document = json.loads((FOLDER / "traces" / "smollm2-f16.json").read_text(encoding="utf-8"))
    assert set("".join(document.values()).lower()) <= set(LETTERS)
