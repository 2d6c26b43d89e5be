"""Above temperature 0, on the demo pair: the same text with a draft and without, and tokens as often as they should."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from duo.config import ContextConfig, ModelConfig, SamplingConfig, StopConfig, ThreadConfig
from duo.engine.background import Background
from duo.engine.check import Checker, Comparison, Drawn
from duo.engine.pair import Pair
from duo.engine.text import Ending, TextStream
from duo.llama.context import Context
from duo.spec.policy import Policy
from duo.spec.sampling import Chain, Coupled, Guesser
from duo.spec.schedule import Schedule
from duo.spec.verify import Matching, Proposer, Rejection, Verifier
from tests.fakes import Eager
from tests.prompts import PROMPTS

N_TOKENS = 16
T = TypeVar("T")
SHORT = ["chat", "code", "json", "story", "list", "question and answer", "german", "html", "c code", "emoji"]


class Bench:
    """The demo pair with one context each."""

    def __init__(self, pair: Pair) -> None:
        assert pair.draft is not None
        self.model, self.draft = pair.target, pair.draft

    def checker(self, choosing: Callable[[int], tuple[Verifier, Guesser]], *, exact: bool) -> Checker:
        config = ContextConfig(512, 1, 1, n_outputs_max=Policy.PROBE_TOKENS, exact=exact)

        def make_ending(n: int | None) -> Ending:
            return Ending(StopConfig(n or N_TOKENS), TextStream(self.model.piece), self.model.is_end)

        threads = ThreadConfig(1, 1, (1,), (1, 1))
        contexts = Context(self.model, config), Context(self.draft, config)
        return Checker(*contexts, threads, choosing, make_ending, threading.Event())


@pytest.fixture(scope="module")
def bench(demo_pair: tuple[Path, Path]) -> Iterator[Bench]:
    with Pair.load(ModelConfig(demo_pair[0]), ModelConfig(demo_pair[1])) as pair:
        yield Bench(pair)


def on_own_thread(work: Callable[[], T]) -> T:
    """As in earnest: OpenMP's team of threads ends with it."""

    def run(put: Callable[[T], None], _: threading.Event) -> None:
        put(work())

    with Background(run, "test") as running:
        return next(iter(running))


def coupled(config: SamplingConfig) -> tuple[Verifier, Guesser]:
    sampler = Coupled(config)
    return Matching(sampler), sampler


@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.2])
def test_a_seed_gives_the_same_text_with_and_without_a_draft(bench: Bench, temperature: float) -> None:
    checker = bench.checker(lambda seed: coupled(SamplingConfig(temp=temperature, seed=seed)), exact=True)
    texts, accepted = [], 0
    for name, seed in product(SHORT, (1, 2, 3)):
        prompt = bench.model.tokenize(PROMPTS[name])

        def compare(prompt: list[int] = prompt, seed: int = seed) -> Comparison:
            return checker.compare(prompt, seed, Eager(6, 12, Schedule.SYNC))

        found = on_own_thread(compare)
        texts.append((name, seed, found.difference))
        accepted += found.n_accepted
    assert [text for text in texts if text[2] is not None] == []
    assert accepted > 50, "the draft has guessed many of them"


@pytest.mark.parametrize("verify", ["coupled", "rejection"])
def test_a_token_beside_a_candidate_comes_as_often_as_the_model_says(bench: Bench, verify: str) -> None:
    # One of the two over all of the vocabulary, which takes longer.
    config = SamplingConfig(temp=0.9)
    if verify == "rejection":
        config = replace(config, top_k=0, top_p=1.0, min_p=0.0)
    chain = Chain(config)

    def choosing(seed: int) -> tuple[Verifier, Guesser]:
        seeded = replace(config, seed=seed)
        return coupled(seeded) if verify == "coupled" else (Rejection(seeded), Proposer(seeded))

    prompt = bench.model.tokenize(PROMPTS["story"])
    checker = bench.checker(choosing, exact=False)

    def draw() -> Drawn:
        return checker.draw(prompt, range(2000), lambda row, _: chain.distribution(row, ()), lambda _: None)

    drawn = on_own_thread(draw)
    assert drawn.n_verified == 2000
    assert 200 < drawn.n_accepted < 1950, "both happen often"
    assert drawn.variation < drawn.bound
    assert drawn.p_value > 1e-6
    assert np.isclose(drawn.expected.probabilities.sum(), 1)
