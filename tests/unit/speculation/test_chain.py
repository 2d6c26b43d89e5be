"""What is left of a whole vocabulary, bit for bit as by the plainest implementation of every filter."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from duo.config import SAMPLERS, SamplingConfig
from duo.errors import GrammarError
from duo.speculation.noise import Purpose, gumbel
from duo.speculation.sampling import Chain, Coupled
from duo.speculation.types import Logits, TokenIds
from duo.speculation.verify import Rejection

N = 12_800  # enough for a search of the 40 largest, and for changes of another 50


def plain(config: SamplingConfig, logits: Logits, recent: Sequence[int]) -> tuple[TokenIds, Logits]:
    """The ids and logits that are left: every filter sorts and copies all it gets."""
    logits = logits.copy()
    for token, bias in config.logit_bias:
        logits[token] += bias
    ids = np.arange(len(logits))
    for name in config.samplers:
        keep = np.arange(len(ids))
        order = np.argsort(-logits, kind="stable")
        if name == "penalties" and config.repeat_last_n:
            for token, count in Counter(recent).items():
                for i in np.flatnonzero(ids == token):
                    old = logits[i] * config.repeat_penalty if logits[i] <= 0 else logits[i] / config.repeat_penalty
                    logits[i] = float(old) - count * config.frequency_penalty - config.presence_penalty
        elif name == "top_k" and config.top_k:
            keep = order[: config.top_k]
        elif name == "top_p" and config.top_p < 1:
            weights = np.exp(logits - logits.max())
            enough = config.top_p * weights.sum(dtype=np.float64)
            keep = up_to(order, weights[order].cumsum(dtype=np.float64) >= enough)
        elif name == "min_p" and config.min_p:
            keep = np.flatnonzero(logits >= min(logits.max(), logits.max() + math.log(config.min_p)))
        elif name == "typ_p" and config.typical < 1:
            shifted = logits.astype(np.float64) - logits.max()
            surprisal = np.log(np.exp(shifted).sum()) - shifted
            masses = np.exp(-surprisal)
            possible = masses > 0
            order = np.argsort(np.abs(surprisal - (masses[possible] * surprisal[possible]).sum()), kind="stable")
            keep = up_to(order, masses[order].cumsum() > config.typical)
        elif name == "temperature":
            logits = logits.astype(np.float64) / (config.temp or 1.0)
        keep = np.sort(keep)
        ids, logits = ids[keep], logits[keep]
    return ids, logits


def up_to(order: TokenIds, enough: Any) -> TokenIds:
    """The beginning of this order up to the first that is enough."""
    return order[: int(enough.argmax()) + 1] if enough.any() else order


def some_logits(dice: np.random.Generator) -> Logits:
    n = int(dice.choice([50, 300, N, 2 * N + 77]))
    logits = (dice.standard_normal(n) * dice.uniform(0.5, 5)).astype(np.float32)
    kind = dice.integers(4)
    if kind == 1:
        logits = logits.round()  # many equal ones
    if kind == 2:  # as a grammar leaves them
        logits[dice.random(n) < dice.choice([0.5, 0.999])] = -np.inf
        logits[dice.integers(n)] = 1.0
    return logits


def some_config(dice: np.random.Generator, n: int) -> SamplingConfig:
    def one(*values: Any) -> Any:
        return values[dice.integers(len(values))]

    samplers = list(SAMPLERS)
    if one(True, False):
        dice.shuffle(samplers)
        samplers = samplers[: dice.integers(1, len(samplers) + 1)]
    tokens = dice.choice(n, one(0, 0, 1, 3), replace=False).tolist()
    return SamplingConfig(
        temp=one(0.7, 1.0, 2.5), top_k=one(40, 40, 1, 100, 0), top_p=one(0.95, 1.0, 0.3), min_p=one(0.05, 0.0, 0.5),
        typical=one(1.0, 1.0, 0.9), repeat_penalty=one(1.0, 1.1, 0.8), frequency_penalty=one(0.0, 0.3, -0.5),
        presence_penalty=one(0.0, 0.4), repeat_last_n=one(64, 0), seed=int(dice.integers(2**63)),
        logit_bias=tuple((token, one(-math.inf, 9.0, -2.0)) for token in tokens), samplers=tuple(samplers),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(150))
def test_the_choice_is_that_of_the_plainest_implementation(seed: int) -> None:
    dice = np.random.default_rng(seed)
    logits = some_logits(dice)
    config, before = some_config(dice, len(logits)), logits.tobytes()
    # Few likely ones, so that many of them are penalised.
    likely = np.argsort(-logits)[:60].tolist()
    recent = dice.choice([*likely, 0, len(logits) - 1], 50).tolist()
    ids, left = plain(config, logits, recent)
    found, scores = Chain(config)(logits, recent)
    assert found.tolist() == ids.tolist()
    if len(ids) > 1:  # the logit of a single one means nothing
        assert (scores.dtype, scores.tobytes()) == (left.dtype, left.tobytes())
    noisy = left + gumbel(config.seed, Purpose.OWN, 7, np.arange(len(logits)))[ids]
    assert Coupled(config).sample(logits, 7, recent) == ids[noisy.argmax()]
    assert Rejection(config).verify(logits[None], [], 7, recent) == (ids[noisy.argmax()],)
    assert logits.tobytes() == before


def test_the_largest_logits_are_found_although_those_before_them_are_made_small() -> None:
    logits = np.arange(N, dtype=np.float32)
    config = SamplingConfig(
        temp=1.0, top_p=1.0, min_p=0.0, frequency_penalty=N, logit_bias=((3, N), (N - 1, -math.inf))
    )
    ids, _ = Chain(config)(logits, range(N - 31, N - 1))
    assert ids.tolist() == [3, *range(N - 70, N - 31)]


def test_tokens_beyond_a_smaller_vocabulary_are_nothing_to_it() -> None:
    config = SamplingConfig(temp=1.0, top_k=1, presence_penalty=1.0, logit_bias=((N, 5.0), (N + 1, -math.inf)))
    assert Chain(config)(np.arange(N, dtype=np.float32), [N + 2])[0].tolist() == [N - 1]


def test_no_token_is_left_where_all_are_excluded() -> None:
    config = SamplingConfig(temp=1.0, logit_bias=((5, -math.inf),))
    logits = np.full(N, -np.inf, np.float32)
    logits[5] = 1.0
    with pytest.raises(GrammarError):
        Chain(config)(logits, ())
