from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from duo.config import SamplingConfig
from duo.errors import GrammarError, UsageError
from duo.spec.sampling import Chain, Coupled, Greedy, softmax
from duo.spec.types import Candidates, Distribution, Guess, Logits
from duo.spec.verify import Matching, Proposer, Rejection, residual
from tests.goodness import chi_square

OPEN = SamplingConfig(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -3.0], np.float32)


def often(sampler: Coupled, n: int = 20_000) -> np.ndarray:
    counts = np.zeros(len(LOGITS), np.int64)
    for position in range(n):
        counts[sampler.sample(LOGITS, position)] += 1
    return counts


@pytest.mark.parametrize("config", [OPEN, replace(OPEN, temp=0.5), replace(OPEN, top_k=3), replace(OPEN, min_p=0.2)])
def test_coupled_sampling_draws_from_the_filtered_distribution(config: SamplingConfig) -> None:
    expected = np.zeros(len(LOGITS))
    ids, probabilities = Chain(config).distribution(LOGITS, ())
    expected[ids] = probabilities
    assert chi_square(often(Coupled(config)), expected) > 1e-4


def test_two_models_that_agree_choose_the_same_token_as_often_as_can_be_hoped_for() -> None:
    """At least half of the bound, 1 - TV, over 1 + TV (Daliri, Musco and Suresh 2024, theorem 3)."""
    dice = np.random.default_rng(1)
    same, bound, least = 0, 0.0, 0.0
    for position in range(3000):
        target = (2 * dice.standard_normal(50)).astype(np.float32)
        draft = (target + 0.5 * dice.standard_normal(50)).astype(np.float32)
        same += Coupled(OPEN).sample(target, position) == Coupled(OPEN).guess(draft, position).token
        shared = float(np.minimum(softmax(target), softmax(draft)).sum())
        bound += shared
        least += shared / (2 - shared)
    assert least - 100 < same < bound + 100
    assert same > 0.9 * bound


def test_the_logits_stay_as_they_are() -> None:
    logits = LOGITS.copy()
    config = replace(OPEN, logit_bias=((0, -5.0),), repeat_penalty=1.5)
    Coupled(config).guess(logits, 3, [1, 2])
    Proposer(config).guess(logits, 3, [1, 2])
    Proposer(config).judge(logits, 3, [1, 2])
    assert (logits == LOGITS).all()


def test_without_temperature_the_most_likely_that_is_left_is_chosen() -> None:
    assert Coupled(SamplingConfig(logit_bias=((0, -1.5),))).sample(LOGITS, 0) == 1
    assert Coupled(SamplingConfig(repeat_penalty=3.0)).sample(LOGITS, 0, [0, 5]) == 1
    assert SamplingConfig().is_plain
    assert Coupled(SamplingConfig()).sample(LOGITS, 0) == Greedy().sample(LOGITS, 0)


def test_confidence_is_the_gap_between_scores_and_large_where_nothing_else_is_left() -> None:
    assert Coupled(SamplingConfig(logit_bias=((0, 0.25),))).guess(LOGITS, 0).confidence == pytest.approx(1.25)
    alone = Coupled(replace(OPEN, top_k=1)).guess(LOGITS, 0)
    assert alone.confidence == 50
    assert alone.distribution is None, "nothing but the token needs to be passed on"


def test_a_proposal_says_what_it_was_drawn_from_and_its_confidence_does_not_know_which() -> None:
    guesses = [Proposer(OPEN).guess(LOGITS, position) for position in range(50)]
    assert len({guess.token for guess in guesses}) > 1
    assert {guess.confidence for guess in guesses} == {1.0}
    assert all(
        np.allclose(guess.distribution.probabilities, softmax(LOGITS)) for guess in guesses if guess.distribution
    )


def test_the_order_of_the_samplers_counts() -> None:
    hot = replace(SamplingConfig(temp=2.0), top_k=0, top_p=0.8, min_p=0.0)
    late = Chain(hot).distribution(LOGITS, ())
    early = Chain(replace(hot, samplers=("temperature", "top_p"))).distribution(LOGITS, ())
    assert len(late.ids) < len(early.ids)
    assert len(Chain(replace(hot, samplers=("temperature",))).distribution(LOGITS, ()).ids) == len(LOGITS)


def test_nothing_left_is_an_error_and_no_token() -> None:
    with pytest.raises(GrammarError):
        Chain(OPEN).distribution(np.full(4, -np.inf, np.float32), ())


def test_the_residual() -> None:
    target = Distribution(np.array([1, 3, 5]), np.array([0.5, 0.3, 0.2]))
    draft = Distribution(np.array([0, 1, 5]), np.array([0.1, 0.7, 0.2]))
    found = residual(target, draft)
    assert found.ids.tolist() == [1, 3, 5]
    assert found.probabilities == pytest.approx([0, 1, 0])
    assert residual(target, target) is target
    assert (target.of(3), target.of(4), target.of(9)) == (0.3, 0, 0)


def rows(*choices: int) -> Logits:
    logits = np.full((len(choices), 6), -20.0, np.float32)
    logits[range(len(choices)), choices] = 20.0
    return logits


def point(token: int, sure_of: int) -> Guess:
    probabilities = np.full(6, 1e-9)
    probabilities[sure_of] = 1
    return Guess(token, 1.0, Distribution(np.arange(6), probabilities))


def test_rejection_goes_from_left_to_right_and_stops_at_the_first_that_is_refused() -> None:
    verifier = Rejection(OPEN)
    chain = Candidates((point(1, 1), point(2, 2), point(4, 4)))
    assert verifier.verify(rows(1, 2, 4, 5), chain, 10).tokens == (1, 2, 4, 5)
    assert verifier.verify(rows(1, 3, 4, 5), chain, 10).tokens == (1, 3)
    assert verifier.verify(rows(0, 2, 4, 5), chain, 10).accepted == ()
    assert verifier.verify(rows(0), Candidates(), 10).tokens == (0,)


class Only:
    """A constraint that lets the text go on with even tokens only, and remembers what it was asked."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.n_masks = 0

    def allows(self, token: int) -> bool:
        return token % 2 == 0

    def mask(self, logits: Logits) -> Logits:
        self.n_masks += 1
        masked: Logits = logits.copy()
        masked[1::2] = -np.inf
        return masked

    def accept(self, token: int) -> None:
        self.accepted.append(token)


@pytest.mark.parametrize("way", ["matching", "rejection"])
def test_a_constraint_is_asked_about_the_chosen_token_only_and_told_what_is_written(way: str) -> None:
    only = Only()
    verifier = Matching(Coupled(OPEN), only) if way == "matching" else Rejection(OPEN, only)
    assert verifier.verify(rows(2, 4, 0), Candidates((point(2, 2), point(4, 4))), 10).tokens == (2, 4, 0)
    assert (only.accepted, only.n_masks) == ([2, 4, 0], 0)
    odd = verifier.verify(rows(2, 3, 0), Candidates((point(2, 2), point(3, 3))), 10)
    assert odd.accepted == (2,)
    assert odd.token % 2 == 0
    assert (only.accepted, only.n_masks) == ([2, 4, 0, 2, odd.token], 1)


class Until(Only):
    """Lets the text go on until it has so many tokens."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self._n = n

    def allows(self, token: int) -> bool:
        return len(self.accepted) < self._n

    def mask(self, logits: Logits) -> Logits:
        raise GrammarError("no more")


@pytest.mark.parametrize("way", ["matching", "rejection"])
def test_what_was_settled_before_a_constraint_leaves_nothing_is_kept(way: str) -> None:
    for n in (1, 2, 3):
        until = Until(n)
        verifier = Matching(Coupled(OPEN), until) if way == "matching" else Rejection(OPEN, until)
        found = verifier.verify(rows(2, 4, 0, 1), Candidates((point(2, 2), point(4, 4), point(0, 0))), 10)
        assert found.tokens == (2, 4, 0)[:n]
        assert len(found.accepted) == n - 1
        with pytest.raises(GrammarError):
            verifier.verify(rows(5), Candidates(), 10 + n)


def test_a_constraint_that_leaves_nothing_is_an_error() -> None:
    odd = replace(OPEN, logit_bias=((0, -np.inf), (2, -np.inf), (4, -np.inf)))
    for way in (Matching(Coupled(odd), Only()), Rejection(odd, Only()), Matching(Greedy([0, 2, 4]), Only())):
        with pytest.raises(GrammarError):
            way.verify(rows(1), Candidates(), 10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"temp": float("nan")}, "temperature must"),
        ({"temp": float("inf")}, "temperature must"),
        ({"top_p": 1.5}, "top_p must"),
        ({"min_p": -0.1}, "min_p must"),
        ({"typical": float("nan")}, "typical_p must"),
        ({"repeat_penalty": 0.0}, "repeat_penalty must"),
        ({"presence_penalty": float("inf")}, "presence_penalty must"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty must"),
        ({"samplers": ("top_k", "dry")}, "'dry'"),
        ({"repeat_last_n": -1}, "repeat_last_n must"),
    ],
)
def test_what_cannot_be_meant(change: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SamplingConfig(**change)  # type: ignore[arg-type]
