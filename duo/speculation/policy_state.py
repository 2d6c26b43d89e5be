"""What a policy has learned, as a profile keeps it: JSON types, each value of which is checked when it is restored."""

from typing import Any, TypedDict

# Times of one condition by name and number (of tokens, threads or sequences): [seconds, relative spread].
CostState = dict[str, dict[str, list[float]]]


class AcceptanceState(TypedDict):
    """See Acceptance."""

    edges: list[float]
    accepted: list[float]
    mean: float
    scored: int
    shares: list[float]
    ranks: list[float]


class PolicyState(TypedDict):
    """See PairModel."""

    costs: dict[str, list[CostState]]  # by the number of free cores, "0" for all: alone and concurrent
    acceptance: dict[str, AcceptanceState]  # by mode of sampling
    read_s: float
    latency_s: float
    bias: dict[str, float]  # by schedule
    # Texts in succession whose first probe did not lead to drafting, and tokens since a candidate was scored.
    probes: list[int]
    looked_up: float  # tokens that the lookup finds between two other steps


def between(value: Any, least: float, most: float) -> float:
    """`value`, if it is a number from `least` to `most`. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    if not least <= value <= most:
        raise ValueError("out of range")
    return float(value)


def duration(value: Any) -> float:
    """`value`, if it can be the time of a decode in seconds; beyond, ratios would overflow."""
    return between(value, 1e-7, 1e5)
