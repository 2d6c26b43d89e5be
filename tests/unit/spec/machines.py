"""Machines to try a policy on: measured ones, and random ones."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from duo.spec.simulate import Machine

N_MAX, N_AHEAD = 8, 16


def times(known: Mapping[int, float]) -> list[float]:
    """T(1) to T(9) in seconds, from some of them in ms; straight between these and constant beyond."""
    return [float(ms) / 1000 for ms in np.interp(range(1, N_MAX + 2), sorted(known), [known[n] for n in sorted(known)])]


_LARGE = times({1: 490, 2: 495, 4: 520, 5: 540, 8: 650, 9: 687})
APART = Machine(_LARGE, 0.025, _LARGE, 0.025, 0.004)  # two devices: the example of the plan
FAST_DRAFT = Machine(  # one machine, a tiny draft
    times({1: 100, 2: 118, 3: 122, 9: 180}), 0.004, times({1: 115, 2: 130, 3: 140, 9: 200}), 0.005, 0.0005
)
TWO_CORES = Machine(  # a target that is slow beside a busy draft: SmolLM2 F32 and Q4_0 on two cores, about
    times({1: 54, 2: 66, 3: 72, 4: 77, 5: 85, 6: 85, 7: 95, 8: 107}),
    0.0173,
    times({1: 90, 2: 140, 3: 140, 4: 150, 5: 160, 6: 165, 7: 180, 8: 210}),
    0.026,
    0.003,
)


@dataclass(frozen=True, slots=True)
class Case:
    """A machine, and a draft of this acceptance."""

    machine: Machine
    acceptance: float


def random_case(seed: int) -> Case:
    """A cost curve that is flat or straight, has cliffs or dips, or just any; a fast draft, or one slower than it."""
    dice = random.Random(seed)
    kind = dice.choice(["flat", "linear", "cliff", "dip", "any"])
    curve = [0.02]
    for _ in range(N_MAX):
        curve.append(max(curve[0], curve[-1] + curve[0] * _rise(kind, dice)))
    slower = dice.uniform(1, 1.6)
    beside = [seconds * slower * dice.uniform(0.95, 1.05) for seconds in curve]
    draft_s = curve[0] * math.exp(dice.uniform(math.log(0.02), math.log(2)))
    machine = Machine(curve, draft_s, beside, draft_s * dice.uniform(1, 1.6), draft_s / 4)
    return Case(machine, dice.uniform(0, 0.95))


def _rise(kind: str, dice: random.Random) -> float:
    if kind == "flat":
        return dice.uniform(0, 0.03)
    if kind == "linear":
        return dice.uniform(0.02, 0.3)
    if kind == "cliff":
        return dice.choice([0, 0, 0, dice.uniform(0.3, 1)])
    if kind == "dip":
        return dice.uniform(-0.3, 0.5)
    return dice.uniform(0, 0.4) * dice.random()
