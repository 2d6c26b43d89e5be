"""From logits to a token, for the target and for the draft.

Above temperature 0 the token is the arg-max of log p + Gumbel noise, where the noise is a function of the seed, the
position and the token id (noise.py). This is an exact sample of p, and the text is a function of the seed and
the target alone. In *coupled sampling* the draft takes the arg-max of its own log q + the same noise, so it predicts
even the random choice whenever the two distributions are similar (Gumbel-max coupling; Daliri, Musco and Suresh 2024,
"Coupling without Communication and Drafter-Invariant Speculative Decoding").
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Protocol

import numpy as np

from duo.config import SAMPLERS, SamplingConfig
from duo.errors import GrammarError
from duo.speculation import filters
from duo.speculation.filters import Tokens
from duo.speculation.noise import Purpose, gumbel
from duo.speculation.types import Candidate, Distribution, Floats, Logits, TokenIds, TokenLogprobs

Scores = tuple[Sequence[int] | TokenIds, Logits]

_SURE = 50.0  # maximum confidence, and that of a single remaining token


class CandidateSampler(Protocol):
    """Chooses the draft's tokens."""

    n_recent: int  # number of preceding tokens that the choice depends on

    def candidate(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Candidate:
        """The drafted token for `position`, from logits `[n_vocab]` and the last `n_recent` tokens before it."""

    def judge(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Candidate:
        """As candidate(), for a position whose token is known: the result is only compared with that."""


class Greedy:
    """Chooses the token of the largest score, among equals that with the lowest id; here, the score is the logit.

    It is a function of the arguments, so draft and target can share it; a CandidateSampler. What leaves no token raises
    GrammarError.
    """

    n_recent = 0

    def __init__(self, banned: Sequence[int] = (), n_alternatives: int = 0) -> None:
        """`banned` tokens are never chosen. `n_alternatives`: how many a candidate has: the next-best tokens."""
        self._banned = np.array(sorted(banned), dtype=np.intp)
        self._n_alternatives = n_alternatives

    def _scores(self, logits: Logits, position: int, recent: Sequence[int]) -> Scores:  # noqa: ARG002 - no randomness
        """The ids `[n]` of the tokens that may be chosen, and their scores."""
        if self._banned.size:
            logits = logits.copy()
            logits[self._banned[: self._banned.searchsorted(logits.size)]] = -np.inf
        return range(logits.size), logits

    def sample(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> int:
        """The token for `position`, from logits `[n_vocab]`."""
        ids, scores = self._scores(logits, position, recent)
        return int(ids[_best(scores)])

    def candidate(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Candidate:
        """The same token, its confidence and its alternatives."""
        ids, scores = self._scores(logits, position, recent)
        best, n = _best(scores), self._n_alternatives
        gap, others = runners_up(scores, best, max(1, n))
        return Candidate(int(ids[best]), gap, alternatives=tuple([int(ids[i]) for i in others[:n]]))

    judge = candidate


class Coupled(Greedy):
    """The scores are the filtered logits plus the noise shared by draft and target; without noise at temperature 0."""

    def __init__(self, config: SamplingConfig, n_alternatives: int = 0) -> None:
        """The alternatives are those under the same noise."""
        super().__init__(n_alternatives=n_alternatives)
        self._seed = config.seed
        self._noisy = config.temp > 0
        self._chain = Chain(config)
        self.n_recent = self._chain.n_recent

    def _scores(self, logits: Logits, position: int, recent: Sequence[int]) -> Scores:
        ids, left = self._chain(logits, recent)
        is_drawn = self._noisy and len(ids) > 1
        return ids, left + gumbel(self._seed, Purpose.OWN, position, ids) if is_drawn else left


def chooser(config: SamplingConfig, banned: Sequence[int] = (), n_alternatives: int = 0) -> Greedy:
    """The sampler of the target, and of its draft. `banned` tokens are never chosen."""
    if config.is_plain:
        return Greedy(banned, n_alternatives)
    return Coupled(without(config, banned), n_alternatives)


def without(config: SamplingConfig, banned: Sequence[int]) -> SamplingConfig:
    """`config` with `banned` tokens excluded."""
    return replace(config, logit_bias=(*config.logit_bias, *((token, -math.inf) for token in banned)))


class Chain:
    """The filters of a SamplingConfig, in their order."""

    def __init__(self, config: SamplingConfig) -> None:
        penalised = config.repeat_last_n and (
            config.repeat_penalty != 1 or config.frequency_penalty or config.presence_penalty
        )
        self.n_recent = config.repeat_last_n if penalised and "penalties" in config.samplers else 0
        self._penalties = partial(
            filters.penalties,
            repeat=config.repeat_penalty,
            frequency=config.frequency_penalty,
            presence=config.presence_penalty,
        )
        steps = {
            "top_k": partial(filters.top_k, k=config.top_k),
            "typ_p": partial(filters.typical, p=config.typical),
            "top_p": partial(filters.top_p, p=config.top_p),
            "min_p": partial(filters.min_p, p=config.min_p),
            "temperature": partial(filters.temperature, value=config.temp or 1.0),
        }
        self._bias = config.logit_bias
        self._steps = [steps.get(name) for name in config.samplers]  # None: penalties
        # The other samplers need no more than the largest logits to find which of them are left after top-k.
        before = config.samplers[: config.samplers.index("top_k")] if "top_k" in config.samplers else SAMPLERS
        self._k = config.top_k if {"typ_p", "top_p"}.isdisjoint(before) else 0

    def __call__(self, logits: Logits, recent: Sequence[int]) -> Tokens:
        """The tokens kept of logits `[n_vocab]`, and their logits over the temperature. Raises GrammarError if none."""
        changed = [*[token for token, _ in self._bias], *(recent if self.n_recent else ())]
        ids = filters.near(logits, self._k + len(changed), changed) if self._k else None
        if ids is None:
            ids = _all_ids(len(logits))
        else:
            logits = logits[ids]
        if self._bias:
            ids, logits = filters.bias(ids, logits, self._bias)
            _best(logits)
        for step in self._steps:
            if len(ids) == 1:  # whatever its logit
                break
            if step is not None:
                ids, logits = step(ids, logits)
            elif self.n_recent and recent:
                ids, logits = self._penalties(ids, logits, recent)
        return ids, logits

    def distribution(self, logits: Logits, recent: Sequence[int]) -> Distribution:
        """The probabilities of the tokens kept of logits `[n_vocab]`. Raises GrammarError if none."""
        ids, left = self(logits, recent)
        _best(left)
        return Distribution(ids, softmax(left))


@lru_cache(4)
def _all_ids(n_vocab: int) -> TokenIds:
    return np.arange(n_vocab)


def _best(scores: Logits) -> int:
    """The index of the largest of `[n]` scores. Raises GrammarError if all are -inf."""
    best = int(scores.argmax())
    if scores[best] == -np.inf:
        raise GrammarError("the grammar and the sampling options exclude every token")
    return best


def softmax(logits: Logits) -> Floats:
    """Probabilities `[n]` float64 of logits `[n]`."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    probabilities: Floats = weights / weights.sum()
    return probabilities


def confidence(scores: Logits) -> float:
    """The gap between the two largest of `[n]` scores: it ranks candidates as well as a probability, and is cheaper."""
    return runners_up(scores, int(scores.argmax()), 1)[0]


def runners_up(scores: Logits, best: int, n: int) -> tuple[float, list[int]]:
    """The confidence of `scores[best]`, and indices of the `n` largest others: an arg-max each beats a partial sort."""
    masked, values = [best], [scores[best]]
    scores[best] = -np.inf
    while len(masked) <= n and (value := scores[i := int(scores.argmax())]) > -np.inf:
        masked.append(i)
        values.append(value)
        scores[i] = -np.inf
    scores[masked] = values
    return min(float(values[0] - values[1]), _SURE) if len(values) > 1 else _SURE, masked[1:]


def logprobs(rows: Logits, tokens: Sequence[int], n: int) -> tuple[TokenLogprobs, ...]:
    """The target's logprobs of `tokens`, each in its row of logits `[k, n_vocab]`, and of the `n` most likely there.

    Every row by itself and in double precision, so that the result does not depend on the other rows.
    """
    found = []
    for row, token in zip(rows, tokens, strict=False):
        best = int(row.argmax())
        weights = row.astype(np.float64)
        weights -= (largest := float(row[best]))
        log_total = math.log(np.exp(weights, out=weights).sum())
        top = (best, *runners_up(row, best, n - 1)[1]) if n else ()
        own, *others = (float(row[i]) - largest - log_total for i in (token, *top))
        found.append(TokenLogprobs(token, own, tuple(zip(top, others, strict=True))))
    return tuple(found)
