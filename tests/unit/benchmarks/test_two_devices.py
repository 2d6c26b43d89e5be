"""The scenario two-devices: what it computes from made-up runs. Its figures themselves are not tested."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks.contestants import Setup
from benchmarks.predicted_texts import Trace, traced
from benchmarks.two_devices import Measured, likely_ks, lines, marked_pairs, take_all
from duo.bench.contestant import Contestant, Job, Run
from duo.bench.emulation import Emulation
from duo.bench.machines import Pair
from duo.bench.prompts import Prompt
from duo.bench.results import Results
from duo.bench.rounds import Sample
from duo.loading import load
from duo.spec.schedule import Schedule
from duo.spec.simulate import Machine
from tests.gguf_files import tiny_llama
from tests.unit.bench.samples import PLAIN, STORY, Silent

T = tuple(0.025 + 0.0015 * n for n in range(17))
MACHINE = Machine(T, 0.008, T, 0.008, 0.0002, branch_s=(0.008, 0.009))
PAIR = Pair("p", "m", MACHINE, True, 0.0, False, (0.008, 0.009), (0.008, 0.009), 3.0, "", "", ())
RIGHT, WRONG = (8.0, True), (0.1, False)
TRACE = Trace(4, [RIGHT, RIGHT, WRONG, RIGHT] * 8, [0, 1, -1, -1] * 2)
MODES = {"sync 2": ("sync", "2", 50.0), "sync 3": ("sync", "3", 56.0), "async": ("async", "auto", 70.0),
         "prepared": ("prepared", "auto", 80.5)}  # fmt: skip


def measured(pair: Pair = PAIR, *, text: str = STORY) -> Measured:
    """One round of two prompts; drafting is 1.1 times as fast in the second."""
    contestants = [PLAIN, *(Contestant(mode, Silent(), n_max=k) for mode, k, _ in MODES.values())]
    results = Results(contestants)
    for i, category in enumerate(("code", "letter")):
        for contestant, rate in zip(contestants, (39.8, *(rate for *_, rate in MODES.values())), strict=True):
            factor = 1.1 if i and contestant is not PLAIN else 1.0
            wrote = text if contestant.mode == "prepared" else STORY
            results.add(Sample(contestant, i, Prompt(category, "?"), Run(32, factor * rate, wrote, own_us=300.0)))
    return Measured("m/p", Emulation(pair, 3.0), results, [TRACE, TRACE])


def test_the_tokens_of_a_verification() -> None:
    assert TRACE.expected(0) == 1
    assert TRACE.expected(3) == (3 + 7 * 4) / 8, "RRW, then RRR and a token of the target's own"
    assert Trace(1, [WRONG] * 5, []).expected(3) == 1
    assert Trace(1, [RIGHT] * 8, []).expected(3) == 4


def test_ratios_are_between_the_fastest_of_each_mode() -> None:
    found = measured()
    turns = found.contestant("sync")
    assert turns is not None
    assert turns.n_max == "3"
    both = found.ratio("async", "sync")
    assert both is not None
    assert both.middle == pytest.approx(1.25)
    assert found.ratio("remote", "sync") is None


def test_the_limit_is_the_draft_or_the_verification() -> None:
    slow = replace(PAIR, machine=replace(MACHINE, beside_draft_s=0.05))
    assert measured(slow).limits() == [20.0, 20.0]
    assert measured().limits() == [125.0, 125.0]
    quick = replace(PAIR, machine=replace(MACHINE, beside_draft_s=0.001))
    assert measured(quick).limits() == [max(TRACE.expected(k) / T[k] for k in range(17))] * 2


def test_predictions_follow_the_schedule_and_the_link() -> None:
    found = measured()
    planned = {mode: found.planned(mode) for mode in ("plain", "sync", "async", "prepared")}
    assert planned["plain"] is not None
    assert planned["plain"].middle == pytest.approx(40 / 39.8)
    for mode in planned:
        replayed = found.replayed(mode)
        assert replayed is not None
        assert 0.5 < replayed.middle < 2
    far = measured(replace(PAIR, delay_s=0.01, machine=replace(MACHINE, latency_s=0.02)))
    for mode in ("sync", "async"):
        near, distant = found.replayed(mode), far.replayed(mode)
        assert near is not None
        assert distant is not None
        assert distant.middle < 0.95 * near.middle
    assert far._policy(Contestant("async", Silent(), n_max="4")).schedule is Schedule.ASYNC


def test_the_bars_and_the_tables() -> None:
    found = {verdict.name: verdict for verdict in measured().verdicts()}
    assert found["m/p: plain over 1/T(1)"].passed
    assert found["m/p: every text as plain's"].passed
    assert found["m/p: async over sync"].passed
    assert found["m/p: prepared over async"].passed
    other = {verdict.name: verdict for verdict in measured(text="something else " * 4).verdicts()}
    assert other["m/p: every text as plain's"].passed is False
    table = lines([measured().row()])
    assert any("58.73 (k=3)" in line for line in table)
    assert any("plain 300, sync 300, async 300, prepared 300 | " in line for line in table)


@dataclass(eq=False)
class Quick:
    """Writes at a given rate."""

    rate: float

    def write(self, job: Job, stop: threading.Event) -> Run:
        return Run(job.n_tokens, self.rate, STORY)


def test_the_slower_of_those_that_take_turns_run_with_one_prompt_only(tmp_path: Path) -> None:
    setup = Setup("", Path(), Path(), (), 3, 64, [], tmp_path, (), tmp_path, ExitStack())
    found = Results([Contestant("plain", Quick(40)), *(Contestant("sync", Quick(k), n_max=str(k)) for k in (3, 5, 4))])
    take_all(found, [Prompt("code", "a"), Prompt("letter", "b")], setup)
    assert [len(found.of(contestant)) for contestant in found.contestants] == [6, 1, 6, 6]
    assert [sample.i_round for sample in found.of(found.contestants[0])] == list(range(6))
    turns = Measured("m/p", Emulation(PAIR, 1.0), found, [TRACE, TRACE]).contestant("sync")
    assert turns is found.contestants[2]


def test_a_text_is_predicted_token_by_token(tmp_path: Path) -> None:
    """The draft is the target itself: all is right. Another one is wrong, and its alternatives are ranked."""
    large, small = (tiny_llama(tmp_path / f"{seed}.gguf", seed=seed, depth=0.02) for seed in (2, 3))
    for draft, all_right in ((large, True), (small, False)):
        with load(large, draft, n_ctx=128, n_threads=1, draft_n_threads=1, profile=False) as engine:
            engine.call(lambda slot: slot.reserve(0, 128))
            prompt = engine.tokenize("the cat sat on the mat")
            found = engine.call(lambda slot, prompt=prompt: traced(slot, prompt, 40))  # type: ignore[misc]
            assert engine.slot.target_cache is not None
            assert engine.slot.target_cache.context.n_past == 0
        right = [is_right for _, is_right in found.scores]
        assert (len(right), all(right), found.n_prompt) == (40, all_right, len(prompt))
        assert len(found.ranks) == right.count(False)
        assert set(found.ranks) <= {-1, 0, 1, 2}


def test_the_marked_pairs_can_be_selected() -> None:
    found = dict(marked_pairs())
    assert len(found) >= 2
    assert all(pair.slow_down for pair in found.values())
    one = next(iter(found))
    assert [name for name, _ in marked_pairs([one])] == [one]


def test_the_best_fixed_lengths_follow_from_the_texts() -> None:
    emulation = Emulation(PAIR, 1.0)
    assert likely_ks([TRACE], emulation) == ["3", "4"]
    assert likely_ks([Trace(1, [WRONG] * 20, [])], emulation) == ["1", "2"]
    assert likely_ks([Trace(1, [RIGHT] * 64, [])], emulation)[0] == "16"
