"""How many cases a generator makes: a fixed sample in `make test-slow`, all of them in `make fuzz`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FULL = "DUO_FUZZ" in os.environ
SAMPLE = 200


def n_cases(full: int) -> int:
    """Number of cases of a generator that has `full` of them at full length."""
    return full if FULL else min(full, SAMPLE)


def cases(full: int) -> settings:
    """Hypothesis settings for a test with `full` cases at full length."""
    return settings(
        max_examples=n_cases(full), deadline=None, derandomize=not FULL, suppress_health_check=list(HealthCheck)
    )
