"""duo's filters against llama.cpp's own samplers, on the same logits."""

import ctypes
from typing import Any

import llama_cpp
import numpy as np
import pytest

from duo.llama.grammar_process import TOKEN
from duo.speculation import filters
from duo.speculation.types import Logits, TokenIds


def random_logits(seed: int, n: int) -> Logits:
    dice = np.random.default_rng(seed)
    return (dice.standard_normal(n) * dice.uniform(1, 5)).astype(np.float32)


def apply(sampler: Any, logits: Logits) -> tuple[TokenIds, Logits]:
    """The tokens that one of llama.cpp's samplers leaves, in ascending order, and their logits."""
    data = np.zeros(len(logits), TOKEN)
    data["id"], data["logit"] = np.arange(len(logits)), logits
    array = llama_cpp.llama_token_data_array(data.ctypes.data_as(llama_cpp.llama_token_data_p), len(logits), -1, False)
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    llama_cpp.llama_sampler_free(sampler)
    left = np.sort(data[: array.size], order="id")
    return left["id"].astype(np.int64), left["logit"]


CASES = {
    "top_k": (0, 1, 40), "top_p": (0.0, 0.3, 0.95, 1.0), "min_p": (0.0, 0.05, 0.5, 1.0), "typical": (0.2, 0.9, 1.0),
    "temp": (0.7,),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CASES.items() for value in values])
def test_a_filter_keeps_what_llama_cpp_keeps(name: str, value: float) -> None:
    make, ours = getattr(llama_cpp, f"llama_sampler_init_{name}"), getattr(filters, name.replace("temp", "temperature"))
    least = () if name in ("top_k", "temp") else (0,)  # tokens to keep
    for n in (3, 700, 5000, 50_001):
        for seed in range(3):
            logits = random_logits(seed, n)
            expected, expected_left = apply(make(value, *least), logits)
            ids, left = ours(np.arange(n), logits.copy(), value)
            assert (np.diff(ids) > 0).all()
            # llama.cpp sums in 32 bits, so that the last token of a set may be another.
            both, here, there = np.intersect1d(ids, expected, assume_unique=True, return_indices=True)
            assert len(ids) + len(expected) - 2 * len(both) <= len(expected) * 1e-3
            assert np.allclose(left[here], expected_left[there], rtol=1e-5)


def test_penalties_agree_with_llama_cpp() -> None:
    n, text = 500, [3, 3, 7, 499, 3, 7, 2]
    logits = random_logits(1, n)
    sampler = llama_cpp.llama_sampler_init_penalties(n, 5, 1.3, 0.2, 0.4)
    for token in text:
        llama_cpp.llama_sampler_accept(sampler, token)
    _, expected = apply(sampler, logits)
    _, left = filters.penalties(np.arange(n), logits, text[-5:], repeat=1.3, frequency=0.2, presence=0.4)
    assert np.allclose(left, expected, rtol=1e-6)
    assert (logits == random_logits(1, n)).all(), "the logits are not modified"
