"""With --exact, the logprobs of the first 50 tokens are bit-equal with any draft and in any schedule.

Compared as they are: two floats are equal only if all their bits are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import duo
from duo.config import SamplingConfig
from tests.prompts import PROMPTS
from tests.proof.pair import ONE, TWO, Pair, opened, policies

N = 50
GREEDY: dict[str, Any] = {}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7}


@pytest.fixture(scope="module")
def pair(demo_pair: tuple[Path, Path]) -> Iterator[Pair]:
    with opened(*demo_pair, N) as made:
        yield made


@pytest.mark.parametrize(("kind", "temp"), [("code", 0.0), ("story", 0.8)])
def test_of_candidates_that_are_certainly_verified(pair: Pair, kind: str, temp: float) -> None:
    plain = pair.begin(PROMPTS[kind], SamplingConfig(temp=temp, seed=7))
    expected = pair.logprobs
    assert len(expected) == N
    assert all(len(one.top) == 5 for one in expected)
    for i, (name, policy) in enumerate(policies().items()):
        assert pair.write(pair.draft, policy, (ONE, TWO)[i % 2]) == plain
        assert pair.logprobs == expected, name
        if name == "sync":
            assert sum(step.n_candidates for step in pair.metrics.steps) > 10
            assert len(pair.metrics.steps) < N


# What each engine has besides the target.
ENGINES: dict[str, dict[str, Any]] = {
    "lookup": {"draft": False},
    "sync": {"schedule": "sync"},
    "async": {"schedule": "async"},
    "auto": {"n_threads": 2, "draft_n_threads": 2},
}


def library(demo_pair: tuple[Path, Path], *, draft: bool = True, **options: Any) -> list[duo.Completion]:
    """A greedy text and a sampled one, each twice: the second time most of the prompt is in the cache."""
    models = demo_pair if draft else demo_pair[:1]
    with duo.load(*models, exact=True, profile=False, **options) as engine:
        return [
            engine.generate(PROMPTS["code"], max_tokens=N, ignore_eos=True, logprobs=5, **sampling)
            for sampling in (GREEDY, SAMPLED, GREEDY, SAMPLED)
        ]


@pytest.fixture(scope="module")
def alone(demo_pair: tuple[Path, Path]) -> list[duo.Completion]:
    return library(demo_pair, draft=False, lookup="off", n_threads=1)


@pytest.mark.parametrize("name", ENGINES)
def test_of_an_engine(demo_pair: tuple[Path, Path], alone: list[duo.Completion], name: str) -> None:
    found = library(demo_pair, **ENGINES[name])
    assert [len(text.logprobs) for text in found] == [N] * 4
    for text, expected in zip(found, alone, strict=True):
        assert text.logprobs == expected.logprobs
