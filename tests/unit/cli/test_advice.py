"""What `duo tune` makes of its measurements."""

from __future__ import annotations

import re

import pytest

from duo.cli.commands.plan import predict, render
from duo.cli.commands.tune import Tuned, advise, choose, learned
from duo.config import AUTO_DRAFT
from duo.diagnose.measure import SIZES, Measurements
from duo.spec.policy import Policy
from duo.spec.schedule import Schedule


def measured(
    target_s: float = 0.1, draft_s: float = 0.005, contention: float = 1.0, share: float = 0.8
) -> Measurements:
    """Of a target that gains from two threads and takes the same for any number of tokens."""
    found = Measurements()
    for n_threads in (1, 2):
        for n in SIZES:
            found.target[n_threads, n] = 0.2 / n_threads
    found.draft = {1: 2 * draft_s, 2: draft_s}
    for split in ((1, 1), (2, 1)):
        times = dict.fromkeys(SIZES, contention * 0.2 / split[0])
        found.beside[split] = (times, contention * draft_s)
    found.scores = [(3.0, i < round(100 * share)) for i in range(100)]
    return found


def advice(found: Measurements) -> tuple[Tuned, list[str], str]:
    """The choice, the advice, and the last line of the table before it."""
    acceptance = sum(right for _, right in found.scores) / len(found.scores)
    tuned = choose(found, acceptance)
    rates = predict(tuned.machine, acceptance, AUTO_DRAFT)
    return tuned, advise(tuned, acceptance, rates), render(tuned.machine, acceptance, rates, AUTO_DRAFT)[-1]


def test_the_fastest_numbers_of_threads_are_chosen() -> None:
    tuned, _, _ = advice(measured())
    assert (tuned.target, tuned.draft, tuned.beside) == (2, 2, (2, 1))
    slow = measured()
    slow.draft = {1: 0.005, 2: 0.02}
    slow.beside[2, 1] = (dict.fromkeys(SIZES, 9.0), 0.005)
    for n in SIZES:
        slow.target[2, n] = 9.0
    tuned, _, _ = advice(slow)
    assert (tuned.target, tuned.draft, tuned.beside) == (1, 1, (1, 1))
    assert tuned.machine.target_s == pytest.approx([0.2] * len(SIZES))


def test_where_the_draft_disturbs_nobody_they_run_side_by_side() -> None:
    _, (helps, flags), best = advice(measured())
    (factor,) = re.findall(r"This draft helps here: about ([\d.]+) times as fast when both run at the same time", helps)
    assert 2 < float(factor) < 6
    assert flags.startswith("Flags: --schedule async (with 2 and 1 threads")
    assert best.startswith("best: --schedule async")
    assert helps.rstrip(".").endswith(best.partition("; ")[2])


def test_where_it_does_they_take_turns() -> None:
    _, (helps, flags), best = advice(measured(contention=3.0))
    assert "when the two take turns" in helps
    assert flags.startswith("Flags: --schedule sync (with 2 and 2 threads")
    assert best.startswith("best: --schedule sync")


@pytest.mark.parametrize(("draft_s", "share", "said"), [(0.2, 0.8, "200 %"), (0.005, 0.0, "5 %")])
def test_a_slow_draft_and_a_bad_one_do_not_help(draft_s: float, share: float, said: str) -> None:
    _, (no, flags), _ = advice(measured(draft_s=draft_s, share=share))
    assert no.startswith(f"This draft does not help here: one of its tokens takes {said} of the target's time")
    assert no.endswith(f"{100 * share:.0f} % are accepted.")
    assert flags == "Flags: --schedule off, or leave out -md"


@pytest.mark.parametrize("share", [0.98, 1.0])
def test_a_draft_that_is_nearly_always_right(share: float) -> None:
    """As many candidates as there may be are verified at once: that size was measured too."""
    _, (helps, _), _ = advice(measured(draft_s=0.0001, share=share))
    assert helps.startswith("This draft helps here: ")


def test_a_later_run_begins_with_all_that_was_measured() -> None:
    found = measured()
    tuned, _, _ = advice(found)
    policy = Policy(AUTO_DRAFT, 2 * AUTO_DRAFT)
    policy.restore(learned(found, tuned).state())
    policy.begin(10)
    assert policy.alone.curve(17) == pytest.approx([0.1] * 17)
    assert policy.beside.curve(17) == pytest.approx([0.1] * 17)
    assert policy.alone.draft_s == pytest.approx(0.005)
    assert policy.schedule is Schedule.ASYNC
