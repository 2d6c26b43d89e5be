from __future__ import annotations

import math

import numpy as np
import pytest

from duo.spec.sampling import logprobs, softmax
from duo.spec.types import Logits


def drawn(n_rows: int, n_vocab: int = 5000) -> Logits:
    return (4 * np.random.default_rng(1).standard_normal((n_rows, n_vocab))).astype(np.float32)


def test_logprobs_are_the_logarithms_of_the_probabilities() -> None:
    rows = drawn(2)
    expected = np.log([softmax(row) for row in rows])
    found = logprobs(rows, [7, 4999], 20)
    assert [one.token for one in found] == [7, 4999]
    for one, row in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(row[one.token], abs=1e-12)
        order = np.argsort(-row, kind="stable")[:20]
        assert [token for token, _ in one.top] == order.tolist()
        assert [value for _, value in one.top] == pytest.approx(row[order], abs=1e-12)
    assert sum(math.exp(value) for _, value in logprobs(rows, [0], 5000)[0].top) == pytest.approx(1, abs=1e-9)


def test_of_equals_the_lowest_ids_come_first() -> None:
    row = np.array([[1, 5, 0, 5, 5, 1]], np.float32)
    assert [token for token, _ in logprobs(row, [4], 4)[0].top] == [1, 3, 4, 0]
    assert [token for token, _ in logprobs(row, [4], 1)[0].top] == [1]


def test_excluded_tokens_and_large_logits() -> None:
    row = np.array([[-np.inf, 9e4, -np.inf, 9e4]], np.float32)
    (found,) = logprobs(row, [0], 4)
    assert found.logprob == -math.inf
    assert found.top == ((1, -math.log(2)), (3, -math.log(2))), "an excluded token is not among the likely ones"
