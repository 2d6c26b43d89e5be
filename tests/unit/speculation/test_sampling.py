import math
from dataclasses import replace

import numpy as np
import pytest

from duo.config import SamplingConfig
from duo.speculation.sampling import Coupled, Greedy, confidence, logprobs, softmax
from duo.speculation.verify import DraftSampler

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
