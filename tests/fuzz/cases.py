"""How many cases a generator makes: a fixed sample in `make test-slow`, all of them in `make fuzz`."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

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


def record(
    optional: dict[str, st.SearchStrategy[Any]] | None = None, **fields: Any
) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with these fields, each a strategy or the value itself, and some of the optional ones."""
    known = {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fields.items()}
    return st.builds(dict.__or__, st.fixed_dictionaries(known), st.fixed_dictionaries({}, optional=optional or {}))
