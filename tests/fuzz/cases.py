"""How many cases a generator makes: a fixed sample in `make test-slow`, all of them in `make fuzz`."""

import os
from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FULL = "DUO_FUZZ" in os.environ
dice = st.randoms(use_true_random=True)


def cases(full: int) -> settings:
    """Hypothesis settings for a test with `full` cases at full length."""
    return settings(
        max_examples=full if FULL else min(full, 100),
        deadline=None,
        derandomize=not FULL,
        suppress_health_check=list(HealthCheck),
    )


def record(
    optional: dict[str, st.SearchStrategy[Any]] | None = None, **fields: Any
) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with these fields, each a strategy or the value itself, and some of the optional ones."""
    known = {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fields.items()}
    return st.builds(dict.__or__, st.fixed_dictionaries(known), st.fixed_dictionaries({}, optional=optional or {}))


def damaged(draw: Random, data: bytes, pieces: Sequence[bytes] = ()) -> bytes:
    """Some bytes cut out, repeated, or replaced by noise or one of the pieces, or that alone."""
    at, size = draw.randrange(len(data) + 1), draw.choice((1, 1, 7, 300))
    head, middle, tail = data[:at], data[at : at + size], data[at + size :]
    new = draw.choice((draw.randbytes(size), draw.choice(pieces))) if pieces else draw.randbytes(size)
    return draw.choice((
        head,
        head + tail,
        head + middle * 2 + tail,
        head + new + tail,
        head + new + middle + tail,
        new * draw.choice((1, 1000)),
    ))  # fmt: skip
