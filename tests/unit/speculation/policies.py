"""Policies that have learned what a test says."""

import math
from collections.abc import Sequence

from duo.speculation.policy import Decision, Policy, StepCost

from duo.speculation.modes import ASYNC, Schedule
from duo.speculation.types import Candidate, Origin, Proposal
from tests.unit.speculation.machines import N_AHEAD

SLOW_TARGET = {1: 0.490, 2: 0.495, 5: 0.540, 9: 0.600}
FLAT = {n: 0.010 + 0.003 * (n - 1) for n in range(1, 10)}
STEEP = {n: 0.010 * n for n in range(1, 10)}
CLIFF = {1: 0.010, 2: 0.020, 3: 0.020, 4: 0.021, 5: 0.022, 6: 0.040, 7: 0.040, 8: 0.041, 9: 0.041}


def scores(acceptance: float, n: int = 500, confidence: float = 1.0) -> list[tuple[float, bool]]:
    """Candidates of which this share is right, evenly spread."""
    return [(confidence, int((i + 1) * acceptance) > int(i * acceptance)) for i in range(n)]


def policy(
    target_s: dict[int, float],
    draft_s: float = 0.005,
    acceptance: float | None = None,
    n_max: int = 8,
    schedules: Sequence[Schedule] = (ASYNC,),
    mode: str = "",
) -> Policy:
    """A policy that has measured T(n), t_d and a(c) as given, the last in a mode of sampling."""
    made = Policy(n_max, N_AHEAD, schedules)
    made.begin(0, mode=mode)
    if acceptance is not None:
        made.learn_scores(scores(acceptance))
    for n, seconds in target_s.items():
        made.costs.add_target(n, seconds)
    made.learn_draft(1, draft_s)
    made.learn_step(1, StepCost(0, target_s[1], target_s[1]))
    return made


def decide(
    made: Policy,
    confidences: Sequence[float] = (),
    next_s: float = math.inf,
    found: Sequence[tuple[float, float]] | None = None,
    n_room: int = 100,
) -> Decision:
    """What the policy decides about a draft's candidates of these `confidences`, and those `found` in the text.

    Of the latter: (chance, observations). They are the draft's, and more.
    """
    drafted = Proposal([Candidate(i, confidence) for i, confidence in enumerate(confidences)], next_s)
    if found is None:
        return made.decide(n_room, drafted)
    candidates = [Candidate(i, 0.0) for i in range(len(found))]
    return made.decide(n_room, drafted, Proposal(candidates, origin=Origin.LOOKUP, chances=found))
