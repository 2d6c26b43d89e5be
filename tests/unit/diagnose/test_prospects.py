"""Machine files: what is read from them, and what is wrong with others. Forecasts from what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from duo.diagnose.measure import SIZES
from duo.diagnose.prospects import Measurements, read_machine
from duo.errors import UsageError
from duo.speculation.modes import Schedule

CARD: dict[str, Any] = {
    "target_ms": {"1": 25, "2": 26, "4": 30}, "draft_ms": {"1": 8, "3": 9}, "read_ms": 0.5, "apart": True,
    "aborts": False, "delay_ms": 10, "traces": "smollm2-f16", "two_devices": {"slow_down": 3},
}  # fmt: skip
SAME: dict[str, Any] = {"target_ms": {"1": 10}, "draft_ms": 2, "beside_target_ms": {"1": 15}, "beside_draft_ms": 3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "machine.json"


def write(path: Path, *, pairs: dict[str, Any] | None = None) -> Path:
    document = {"name": "a machine", "source": "somebody", "noise": 0.03, "spikes": 0.01, "assumed": ["noise"]}
    path.write_text(json.dumps({**document, "pairs": pairs or {"card": CARD, "same": SAME}}))
    return path


def test_what_a_pair_says(path: Path) -> None:
    pairs = read_machine(write(path), n_max=4)
    pair, machine = pairs["card"], pairs["card"].machine
    assert machine.target_s == machine.concurrent_target_s == pytest.approx((0.025, 0.026, 0.028, 0.030, 0.032))
    assert pair.draft_alone_s == machine.branch_s
    assert machine.branch_s == pytest.approx([0.008 + i * 0.0005 for i in range(9)])
    assert (machine.draft_s, machine.concurrent_draft_s, machine.read_s) == (0.008, 0.008, 0.0005)
    assert (machine.noise, machine.spikes, machine.latency_s, machine.aborts) == (0.03, 0.01, 0.02, False)
    assert (pair.separate_devices, pair.two_devices) == (True, {"slow_down": 3})
    assert (pair.name, pair.machine_name, pair.source, pair.assumed) == ("card", "a machine", "somebody", ["noise"])
    pair, machine = pairs["same"], pairs["same"].machine
    assert (machine.target_s, machine.concurrent_target_s) == ((0.01,) * 5, (0.015,) * 5)
    assert pair.draft_alone_s == pytest.approx([0.002 * n for n in range(1, 10)]), "one after the other"
    assert machine.branch_s == pytest.approx([0.003 * n for n in range(1, 10)])
    assert (pair.separate_devices, machine.latency_s, pair.two_devices) == (False, 0.0, None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"target_ms": {"2": 25}}, "pair 'card': a table has no time for 1"),
        ({"target_ms": {"one": 25}}, "Expected `int`, got `str` - at `key` in `$.pairs[...].target_ms`"),
        ({"draft_ms": 0}, "$.pairs[...].draft_ms"),
        ({"draft_ms": {"1": 1e300}}, "draft_ms"),
        ({"apart": False}, "pair 'card': `beside_target_ms` and `beside_draft_ms` are required unless"),
        ({"two_devices": {"slow_down": 0}}, "two_devices"),
        ({"draft_mss": 4}, "unknown field `draft_mss`"),
    ],
)
def test_a_wrong_field_is_named(path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_machine(write(path, pairs={"card": CARD | wrong}))
    assert str(raised.value).startswith(f"{path}: not a machine file: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


# Forecasts


def sync_rate(draft_s: float, share: float, pair: float = 1.3, n_max: int = 16) -> float:
    """The forecast with a draft of which `share` of the predictions is right; it is as sure of all."""
    flat = dict.fromkeys(SIZES, 0.1)
    scores = [(3.0, i < round(100 * share)) for i in range(100)]
    found = Measurements({1: flat}, {1: {1: draft_s, 2: pair * draft_s}}, {(1, 1): (flat, draft_s)}, scores=scores)
    return found.estimates(1, (1, 1), n_max).forecasts()[Schedule.SYNC].rate


def test_the_forecast_has_what_was_measured() -> None:
    assert 10 < sync_rate(0.01, 0.3) < sync_rate(0.01, 0.6) < sync_rate(0.01, 0.9) < 100
    assert sync_rate(0.03, 0.6) < sync_rate(0.01, 0.6)
    assert sync_rate(0.055, 0.8, pair=1.0) > sync_rate(0.055, 0.8, pair=1.9) >= 10
    assert 25 < sync_rate(0.0001, 1.0, n_max=2) <= 30 < sync_rate(0.0001, 1.0), "as many as the target can verify"
