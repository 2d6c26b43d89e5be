import json
import math
import random
from collections.abc import Callable
from statistics import mean
from typing import Any

import pytest

from duo.spec.costs import TRUST, Calibration

SURE, DOUBTFUL = 9.0, 0.0


def learn(calibration: Calibration, acceptance: float, n: int, seed: int = 0) -> Calibration:
    dice = random.Random(seed)
    for _ in range(n):
        calibration.add(1.0, dice.random() < acceptance)
    return calibration


def test_calibration_learns_what_each_confidence_is_worth() -> None:
    calibration = Calibration()
    assert calibration.probability(DOUBTFUL) < calibration.mean < calibration.probability(SURE), "a guess at first"
    other = calibration.probability(SURE)
    for _ in range(100):
        calibration.add(DOUBTFUL, accepted=True)
    assert calibration.probability(DOUBTFUL) > 0.9
    assert calibration.probability(SURE) == other
    for _ in range(200):
        calibration.add(DOUBTFUL, accepted=False)
    assert calibration.probability(DOUBTFUL) < 0.1


@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_calibration_finds_the_mean(acceptance: float) -> None:
    assert learn(Calibration(), acceptance, 1000).mean == pytest.approx(acceptance, abs=0.06)


@pytest.mark.parametrize(("before", "after"), [(0.85, 0.0), (0.0, 0.85), (0.2, 0.8)])
def test_calibration_soon_notices_that_the_text_has_changed(before: float, after: float) -> None:
    """Most of the way within twenty candidates; a mean of long memory goes a fifth of it."""
    ways: dict[int, list[float]] = {20: [], 60: []}
    for n, found in ways.items():
        for seed in range(20):
            calibration = learn(learn(Calibration(), before, 2000, seed), after, n, seed + 100)
            for value in (calibration.mean, calibration.probability(1.0)):
                found.append((value - before) / (after - before))
    assert mean(ways[20]) > 0.6
    assert mean(ways[60]) > 0.8


def test_calibration_does_not_follow_chance_while_the_text_stays_the_same() -> None:
    """The mean of the last 50 candidates would be off by 0.057 (root mean square), that of the last 100 by 0.04."""
    squares = []
    for seed in range(5):
        calibration, dice = learn(Calibration(), 0.8, 200, seed), random.Random(seed)
        for _ in range(2000):
            calibration.add(1.0, dice.random() < 0.8)
            squares.append((calibration.mean - 0.8) ** 2)
    assert math.sqrt(mean(squares)) < 0.04


def test_calibration_begins_another_run_half_way_between_a_guess_and_what_was_learned() -> None:
    """Texts differ, so it trusts the draft a little more than that at first."""
    fresh, calibration, restored = Calibration(), learn(Calibration(), 0.3, 500), Calibration()
    restored.restore(json.loads(json.dumps(calibration.state())))
    for confidence in (DOUBTFUL, 1.0, SURE):
        half = (fresh.probability(confidence) + calibration.probability(confidence)) / 2
        assert restored.probability(confidence) == pytest.approx(half)
    assert restored.mean == pytest.approx((fresh.mean + calibration.mean) / 2 + TRUST)
    learn(restored, 1.0, 20)
    assert restored.mean > 0.85, "and it counts for little"


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("mean"),
        lambda state: state.update(mean=1.5),
        lambda state: state.update(mean="often"),
        lambda state: state.update(mean=math.nan),
        lambda state: state.update(edges=[1.0]),
        lambda state: state["accepted"].pop(),
        lambda state: state["accepted"].__setitem__(0, -0.1),
        lambda state: state.update(accepted=None),
    ],
)
def test_a_damaged_calibration_is_refused(damage: Callable[[dict[str, Any]], Any]) -> None:
    state = Calibration().state()
    damage(state)
    with pytest.raises((KeyError, TypeError, ValueError)):
        Calibration().restore(state)
