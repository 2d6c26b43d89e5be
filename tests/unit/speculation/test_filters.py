"""tests/unit/llama/test_samplers.py compares every filter with llama.cpp's."""

import numpy as np
import pytest

from duo.speculation import filters


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
