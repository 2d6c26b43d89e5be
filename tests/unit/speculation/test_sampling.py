"""Filters, noise, and what is chosen. tests/unit/llama/test_samplers.py compares every filter with llama.cpp's."""

import math
from dataclasses import replace

import numpy as np
import pytest

from duo.config import SamplingConfig
from duo.speculation import filters
from duo.speculation.noise import Purpose, gumbel, uniform, uniforms
from duo.speculation.sampling import Coupled, Greedy, confidence, logprobs, softmax
from duo.speculation.verify import DraftSampler
from tests.goodness import chi_square

OPEN = SamplingConfig(temp=1.0, top_k=0, top_p=1.0, min_p=0.0)
LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -3.0], np.float32)


def test_greedy_chooses_the_first_of_equals_and_never_a_banned_token() -> None:
    logits = np.array([1, 5, 5, 0], np.float32)
    assert Greedy().sample(logits, 0) == 1
    assert Greedy(banned=[1, 99]).sample(logits, 0) == 2
    assert logits.tolist() == [1, 5, 5, 0], "a target's logits are left as they were, for logprobs"


def test_confidence_is_the_gap_to_the_second_best_token() -> None:
    logits = np.array([1.0, 5.0, 3.5, 0.0], np.float32)
    assert confidence(logits) == 1.5
    assert Greedy(n_alternatives=2).candidate(logits, 0)[:2] == (1, 1.5)
    assert Greedy(n_alternatives=2).candidate(logits, 0).alternatives == (2, 0)
    assert logits.tolist() == [1.0, 5.0, 3.5, 0.0]
    assert Coupled(SamplingConfig(logit_bias=((0, 0.25),))).candidate(LOGITS, 0).confidence == pytest.approx(1.25)
    alone = Coupled(replace(OPEN, top_k=1)).candidate(LOGITS, 0)
    assert (alone.confidence, alone.distribution) == (50, None), "no second token is left"


def test_coupled_models_agree_nearly_as_often_as_their_distributions_overlap() -> None:
    """At least (1 - TV) / (1 + TV), and at most 1 - TV (Daliri, Musco and Suresh 2024, theorem 3)."""
    dice = np.random.default_rng(1)
    same, bound, least = 0, 0.0, 0.0
    for position in range(2000):
        target = (2 * dice.standard_normal(50)).astype(np.float32)
        draft = (target + 0.5 * dice.standard_normal(50)).astype(np.float32)
        same += Coupled(OPEN).sample(target, position) == Coupled(OPEN).candidate(draft, position).token
        shared = float(np.minimum(softmax(target), softmax(draft)).sum())
        bound += shared
        least += shared / (2 - shared)
    assert least - 80 < same < bound + 80
    assert same > 0.9 * bound


def test_sampling_does_not_modify_the_logits() -> None:
    logits, config = LOGITS.copy(), replace(OPEN, logit_bias=((0, -5.0),), repeat_penalty=1.5)
    for choose in (Coupled(config).candidate, DraftSampler(config).candidate, DraftSampler(config).judge):
        choose(logits, 3, [1, 2])
    assert (logits == LOGITS).all()


def test_at_temperature_0_the_most_likely_token_after_bias_and_penalties_is_chosen() -> None:
    assert Coupled(SamplingConfig(logit_bias=((0, -1.5),))).sample(LOGITS, 0) == 1
    assert Coupled(SamplingConfig(repeat_penalty=3.0)).sample(LOGITS, 0, [0, 5]) == 1
    assert SamplingConfig().is_plain
    assert Coupled(SamplingConfig()).sample(LOGITS, 0) == Greedy().sample(LOGITS, 0)


# Logprobs


def test_logprobs_are_the_logarithms_of_the_probabilities() -> None:
    rows = (4 * np.random.default_rng(1).standard_normal((2, 5000))).astype(np.float32)
    expected = np.log([softmax(row) for row in rows])
    found = logprobs(rows, [7, 4999], 20)
    assert [one.token for one in found] == [7, 4999]
    for one, row in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(row[one.token], abs=1e-12)
        order = np.argsort(-row, kind="stable")[:20]
        assert [token for token, _ in one.top] == order.tolist()
        assert [value for _, value in one.top] == pytest.approx(row[order], abs=1e-12)


def test_of_equal_logprobs_the_lowest_ids_come_first_and_excluded_tokens_are_not_among_them() -> None:
    row = np.array([[1, 5, 0, 5, 5, 1]], np.float32)
    assert [token for token, _ in logprobs(row, [4], 4)[0].top] == [1, 3, 4, 0]
    (found,) = logprobs(np.array([[-np.inf, 9e4, -np.inf, 9e4]], np.float32), [0], 4)
    assert (found.logprob, found.top) == (-math.inf, ((1, -math.log(2)), (3, -math.log(2))))


# Filters


@pytest.mark.parametrize("k", [1, 5, 40, 400])
def test_top_k_of_a_large_vocabulary_agrees_with_a_full_sort(k: int) -> None:
    """Where only the maxima of blocks are sorted: with ties at the edge, and the last block incomplete."""
    for seed in range(5):
        logits = np.random.default_rng(seed).integers(-400, 400, 128_256 + seed).astype(np.float32)
        ids, left = filters.top_k(np.arange(len(logits)), logits, k)
        assert ids.tolist() == sorted(np.argsort(-logits, kind="stable")[:k].tolist())
        assert (left == logits[ids]).all()


def test_bias_and_penalties_apply_to_the_tokens_that_are_left() -> None:
    ids, logits = np.array([2, 5, 8]), np.array([4.0, -4.0, 1.0])
    biased = filters.bias(ids, logits, [(5, 10.0), (3, 1.0), (99, 1.0), (2, -np.inf)])
    penalised = filters.penalties(ids, logits, [5, 2, 2, 7, 99], repeat=2.0, frequency=0.5, presence=0.25)
    assert biased[1].tolist() == [-np.inf, 6.0, 1.0]
    assert penalised[1].tolist() == [4 / 2 - 2 * 0.5 - 0.25, -4 * 2 - 0.5 - 0.25, 1.0]
    assert ids.tolist() == biased[0].tolist() == penalised[0].tolist() == [2, 5, 8]
    assert logits.tolist() == [4.0, -4.0, 1.0]


# Noise

IDS = np.arange(200_000)
LIMIT = 1e-4  # of a p-value


def test_noise_is_a_function_of_seed_purpose_position_and_token() -> None:
    """Another function would change every text that was ever written with a seed."""
    some = np.array([0, 1, 49_151])
    assert uniforms(42, Purpose.OWN, 7, some).tolist() == [0.21707728872515164, 0.9396906519955153, 0.04203083003603891]
    assert (uniforms(1, Purpose.OWN, 5, some) == uniforms(1, Purpose.OWN, 5, IDS)[some]).all()
    assert uniform(1, Purpose.COIN, 5) == uniforms(1, Purpose.COIN, 5, np.array([0]))[0]


@pytest.mark.parametrize("other", [(2, Purpose.OWN, 5), (1, Purpose.DRAFT, 5), (1, Purpose.OWN, 6)])
def test_noise_of_another_seed_purpose_or_position_is_independent(other: tuple[int, Purpose, int]) -> None:
    """Pairs are uniform in a grid of squares, also shifted against each other."""
    first, second = uniforms(1, Purpose.OWN, 5, IDS), uniforms(*other, IDS)
    for shift in (0, 1, 2):
        cells = (first * 20).astype(int) * 20 + (np.roll(second, shift) * 20).astype(int)
        assert chi_square(np.bincount(cells, minlength=400), np.full(400, 1 / 400)) > LIMIT


def test_noise_is_uniform_and_gumbel_noise_has_the_moments_of_gumbel() -> None:
    numbers = uniforms(9, Purpose.OWN, 1, IDS)
    assert 0 < numbers.min() < 1e-4 < 1 - 1e-4 < numbers.max() < 1
    assert chi_square(np.bincount((numbers * 1000).astype(int), minlength=1000), np.full(1000, 1e-3)) > LIMIT
    assert len(np.unique(numbers)) == len(IDS), "53 bits"
    noise = gumbel(9, Purpose.OWN, 1, IDS)
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, rel=0.02)
