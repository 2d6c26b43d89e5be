"""Many tests at once."""

from __future__ import annotations


def false_discoveries(p_values: list[float], rate: float) -> list[int]:
    """Which of the tests fail, so that at most `rate` of those are false alarms (Benjamini and Hochberg 1995)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    passed = [rank for rank, i in enumerate(order, 1) if p_values[i] <= rate * rank / len(p_values)]
    return sorted(order[: max(passed, default=0)])
