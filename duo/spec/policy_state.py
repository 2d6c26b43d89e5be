"""What a policy has learned, as a profile keeps it: JSON types, checked when they are restored."""

from __future__ import annotations

from typing import TypedDict

# Times of one condition by name and number (of tokens, threads or sequences): [seconds, relative spread].
CostState = dict[str, dict[str, list[float]]]


class CalibrationState(TypedDict):
    """See Calibration."""

    edges: list[float]
    accepted: list[float]
    mean: float
    scored: int
    shares: list[float]
    ranks: list[float]


class PolicyState(TypedDict):
    """See PairModel."""

    costs: dict[str, list[CostState]]  # by the number of free cores, "0" for all: alone and concurrent
    acceptance: dict[str, CalibrationState]  # by mode of sampling
    read_s: float
    latency_s: float
    bias: dict[str, float]  # by schedule
