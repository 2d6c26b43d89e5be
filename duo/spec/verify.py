"""Verification: which candidates are accepted, and the target's own token after them.

*Matching* accepts a candidate if it equals the target's own choice; it applies whenever the choice is a function of
logits and position: greedy or coupled sampling (duo/spec/sampling.py). *Rejection sampling* (Leviathan et al. 2023;
Chen et al. 2023): the draft draws from its own distribution q, and a candidate x is accepted with probability
min(1, p(x)/q(x)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from duo.config import SamplingConfig
from duo.errors import GrammarError
from duo.spec.noise import Purpose, gumbel, uniform
from duo.spec.sampling import Chain, Sampler, confidence, softmax
from duo.spec.types import Acceptance, Candidates, Distribution, Floats, Guess, Logits


class Constraint(Protocol):
    """A stateful constraint on the text, such as a grammar."""

    def allows(self, token: int) -> bool:
        """Whether the text may continue with `token`."""

    def mask(self, logits: Logits) -> Logits:
        """A copy of logits `[n_vocab]` with -inf for all tokens that are not allowed."""

    def accept(self, token: int) -> None:
        """The text continues with `token`, which is allowed."""


class Verifier(Protocol):
    """Decides which candidates to accept."""

    n_recent: int  # number of preceding tokens that its decisions depend on

    def verify(
        self, target_logits: Logits, candidates: Candidates, position: int, recent: Sequence[int] = ()
    ) -> Acceptance:
        """Verify the candidates from left to right, up to the first rejection.

        target_logits: `[k+1, n_vocab]`; row i predicts the token after `candidates[:i]`, at `position + i`. `recent`:
        the last `n_recent` tokens before `position`. Raises GrammarError if no token is allowed at `position`, and
        what the constraint raises.
        """


def left_to_right(tokens: tuple[int, ...], settle: Callable[[int], int]) -> Acceptance:
    """Determine the token of each position with `settle`, up to the first that differs from the candidate.

    If `settle` raises GrammarError after the first position, the text ends with the tokens before.
    """
    for i in range(len(tokens) + 1):
        try:
            token = settle(i)
        except GrammarError:
            if not i:
                raise
            return Acceptance(tokens[: i - 1], tokens[i - 1])
        if i == len(tokens) or token != tokens[i]:
            break
    return Acceptance(tokens[:i], token)


class Matching:
    """Accepts the candidates that equal the target's own choice, so the text is that of the target alone."""

    def __init__(self, sampler: Sampler, constraint: Constraint | None = None) -> None:
        self._sampler = sampler
        self._constraint = constraint
        self.n_recent = sampler.n_recent

    def verify(
        self, target_logits: Logits, candidates: Candidates, position: int, recent: Sequence[int] = ()
    ) -> Acceptance:
        """See Verifier."""
        tokens = candidates.tokens
        return left_to_right(tokens, lambda i: self._choose(target_logits[i], position + i, (*recent, *tokens[:i])))

    def _choose(self, logits: Logits, position: int, before: Sequence[int]) -> int:
        """The target's token. Masking the whole vocabulary is slow, so it is done only if the token is not allowed."""
        recent = before[-self.n_recent :] if self.n_recent else ()
        token = self._sampler.sample(logits, position, recent)
        if self._constraint is not None:
            if not self._constraint.allows(token):
                token = self._sampler.sample(self._constraint.mask(logits), position, recent)
            self._constraint.accept(token)
        return token


class Rejection:
    """Rejection sampling, for the target.

    It is exact under three conditions. Candidates are considered from left to right. Whether candidate i is considered
    depends only on the tokens before it and on what was known at i *before* it was drawn, such as the draft's
    distribution or the time, and on nothing later (see best_in_order() in duo/spec/decision.py). The random numbers for
    the draft's draw, the coin, the residual and the target's own token are independent (duo/spec/noise.py).
    """

    def __init__(self, config: SamplingConfig, constraint: Constraint | None = None) -> None:
        self._seed = config.seed
        self._chain = Chain(config)
        self._constraint = constraint
        self.n_recent = self._chain.n_recent

    def verify(
        self, target_logits: Logits, candidates: Candidates, position: int, recent: Sequence[int] = ()
    ) -> Acceptance:
        """See Verifier. A candidate without the distribution that it was drawn from was certain to its draft."""
        tokens = candidates.tokens
        guesses = (*candidates.guesses, None)
        return left_to_right(
            tokens, lambda i: self._settle(target_logits[i], guesses[i], position + i, (*recent, *tokens[:i]))
        )

    def _settle(self, logits: Logits, guess: Guess | None, position: int, before: Sequence[int]) -> int:
        """The token at `position`: that of `guess` if it is accepted."""
        recent = before[-self.n_recent :] if self.n_recent else ()
        target = self._chain.distribution(logits, recent)
        if guess is None:
            token = draw(target, self._seed, Purpose.OWN, position)
        else:
            token = self._judge(target, guess, position)
        if self._constraint is not None:
            if not self._constraint.allows(token):
                allowed = self._chain.distribution(self._constraint.mask(logits), recent)
                token = draw(allowed, self._seed, Purpose.REFUSED, position)
            self._constraint.accept(token)
        return token

    def _judge(self, target: Distribution, guess: Guess, position: int) -> int:
        draft = guess.distribution or certain(guess.token)
        coin = uniform(self._seed, Purpose.COIN, position)
        if coin * draft.of(guess.token) < target.of(guess.token):
            return guess.token
        return draw(residual(target, draft), self._seed, Purpose.RESIDUAL, position)


class Proposer:
    """Rejection sampling, for the draft: draws from its own distribution and attaches it."""

    def __init__(self, config: SamplingConfig) -> None:
        self._seed = config.seed
        self._chain = Chain(config)
        self.n_recent = self._chain.n_recent

    def guess(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Guess:
        """A token drawn from the draft's distribution. The confidence is independent of the draw: see Rejection."""
        ids, left = self._chain(logits, recent)
        sure = confidence(left, int(left.argmax()))
        scores = left + gumbel(self._seed, Purpose.DRAFT, position, ids)
        return Guess(int(ids[scores.argmax()]), sure, Distribution(ids, softmax(left)))

    def judge(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Guess:
        """The token of coupled sampling, which is right about as often as a drawn token is accepted."""
        ids, left = self._chain(logits, recent)
        sure = confidence(left, int(left.argmax()))
        return Guess(int(ids[(left + gumbel(self._seed, Purpose.OWN, position, ids)).argmax()]), sure)


def certain(token: int) -> Distribution:
    """The distribution in which `token` has all probability."""
    return Distribution(np.array([token]), np.ones(1))


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """The normalised positive part of `target` - `draft`; `target` itself if that is empty."""
    at = np.minimum(draft.ids.searchsorted(target.ids), len(draft.ids) - 1)
    taken = np.where(draft.ids[at] == target.ids, draft.probabilities[at], 0.0)
    rest: Floats = np.maximum(target.probabilities - taken, 0.0)
    total = rest.sum()
    return Distribution(target.ids, rest / total) if total > 0 else target


def draw(distribution: Distribution, seed: int, purpose: Purpose, position: int) -> int:
    """Draw a token, as the arg-max of log p + Gumbel noise."""
    ids, probabilities = distribution
    possible = probabilities > 0
    ids = ids[possible]
    scores = np.log(probabilities[possible]) + gumbel(seed, purpose, position, ids)
    return int(ids[scores.argmax()])
