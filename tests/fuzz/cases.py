"""How many cases a generator makes: a fixed sample in `make test-slow`, all of them in `make fuzz`."""

from __future__ import annotations

import os
import random
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FULL = "DUO_FUZZ" in os.environ
SAMPLE = 200
BATCH = 50
SEED = random.getrandbits(32) if FULL else 1


def n_cases(full: int) -> int:
    """Number of cases of a generator that has `full` of them at full length."""
    return full if FULL else min(full, SAMPLE)


def cases(full: int) -> settings:
    """Hypothesis settings for a test with `full` cases at full length."""
    return settings(
        max_examples=n_cases(full), deadline=None, derandomize=not FULL, suppress_health_check=list(HealthCheck)
    )


def batches(full: int, size: int = BATCH) -> pytest.MarkDecorator:
    """Parameters of a test with `full` cases at full length: the numbers of `size` cases each."""
    numbers = range(n_cases(full))
    return pytest.mark.parametrize("numbers", [numbers[at : at + size] for at in numbers[::size]], ids=str)


def dice(number: int) -> Random:
    """The random numbers of a case."""
    return Random(f"{SEED} {number}")


def record(
    optional: dict[str, st.SearchStrategy[Any]] | None = None, **fields: Any
) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with these fields, each a strategy or the value itself, and some of the optional ones."""
    known = {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fields.items()}
    return st.builds(dict.__or__, st.fixed_dictionaries(known), st.fixed_dictionaries({}, optional=optional or {}))
