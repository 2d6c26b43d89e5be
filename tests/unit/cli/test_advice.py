"""What `duo tune` concludes from its measurements."""

from __future__ import annotations

import random
import re

import pytest

from duo.cli.commands.plan import render
from duo.cli.commands.tune import advise, choose
from duo.diagnose.measure import SIZES
from duo.diagnose.timing import Measurements


def measured(
    target_s: float = 0.1, draft_s: float = 0.005, contention: float = 1.0, share: float = 0.8
) -> Measurements:
    """Of a target that gains from two threads and takes the same for any number of tokens."""
    found = Measurements()
    for n_threads in (1, 2):
        for n in SIZES:
            found.target[n_threads, n] = 2 * target_s / n_threads
    found.draft = {1: 2 * draft_s, 2: draft_s}
    found.pair = {1: 3 * draft_s, 2: 1.5 * draft_s}
    for split in ((1, 1), (2, 1)):
        times = dict.fromkeys(SIZES, contention * 2 * target_s / split[0])
        found.concurrent[split] = (times, contention * draft_s)
    found.scores = [(3.0, i < round(100 * share)) for i in range(100)]
    random.Random(0).shuffle(found.scores)
    return found


def advice(found: Measurements) -> tuple[str, str, str]:
    """The two lines of advice, and the last line of the table before it."""
    tuned = choose(found)
    verdict, options = advise(found, tuned)
    return verdict, options, render(tuned.prospects)[-1]


def test_the_fastest_numbers_of_threads_are_chosen() -> None:
    tuned, slow = choose(measured()), measured()
    assert (tuned.target, tuned.draft, tuned.concurrent) == (2, 2, (2, 1))
    slow.draft = {1: 0.005, 2: 0.02}
    slow.concurrent[2, 1] = (dict.fromkeys(SIZES, 9.0), 0.005)
    for n in SIZES:
        slow.target[2, n] = 9.0
    tuned = choose(slow)
    assert (tuned.target, tuned.draft, tuned.concurrent) == (1, 1, (1, 1))
    assert tuned.policy.alone.curve(len(SIZES)) == pytest.approx([0.2] * len(SIZES))


@pytest.mark.parametrize(
    ("contention", "schedule", "with_threads"), [(1.0, "async", "2 and 1 threads"), (3.0, "sync", "2 and 2 threads")]
)
def test_contention_decides_between_the_schedules(contention: float, schedule: str, with_threads: str) -> None:
    verdict, options, best = advice(measured(contention=contention))
    (factor,) = re.findall(r"([\d.]+) times as fast", verdict)
    assert 1.3 < float(factor) < 6
    assert f"--schedule {schedule} (with {with_threads}" in options
    assert f"--schedule {schedule}" in best
    assert verdict.rstrip(".").endswith(best.partition("; ")[2]), "with the same number of candidates"


@pytest.mark.parametrize(("draft_s", "share", "said"), [(0.2, 0.8, "200 %"), (0.005, 0.0, "5 %")])
def test_a_slow_draft_and_a_bad_one_are_advised_against(draft_s: float, share: float, said: str) -> None:
    verdict, options, _ = advice(measured(draft_s=draft_s, share=share))
    assert f" {said} of the target's time" in verdict
    assert f" {100 * share:.0f} % are accepted" in verdict
    assert "--schedule off" in options
