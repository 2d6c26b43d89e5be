"""Verification: which candidates stay, and the target's own token after them.

*Matching* asks whether a candidate is what the target chooses itself; it goes with any choice that is a function of
the logits and the position: greedy, or coupled (duo/spec/sampling.py). *Rejection sampling* is the classic way
(Leviathan et al. 2023; Chen et al. 2023): the draft draws from its own distribution q, and a candidate x is kept with
probability min(1, p(x)/q(x)).
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
    """What a text must obey, such as a grammar. It knows the text so far."""

    def allows(self, token: int) -> bool:
        """Whether the text may go on with `token`."""
        ...

    def mask(self, logits: Logits) -> Logits:
        """A copy of logits `[n_vocab]` with -inf for all tokens that it may not go on with."""
        ...

    def accept(self, token: int) -> None:
        """The text goes on with `token`, which is allowed."""
        ...


class Verifier(Protocol):
    """Decides on candidates."""

    n_recent: int  # how many tokens before a position its decisions depend on

    def verify(
        self, target_logits: Logits, candidates: Candidates, position: int, recent: Sequence[int] = ()
    ) -> Acceptance:
        """Go through the candidates from left to right, up to the first that does not stay.

        target_logits: `[k+1, n_vocab]`, may be overwritten; row i predicts the token after `candidates[:i]`, at
        `position + i`. `recent` are the last `n_recent` tokens before `position`. Raises what the constraint raises.
        """
        ...


def left_to_right(tokens: tuple[int, ...], settle: Callable[[int], int]) -> Acceptance:
    """Settle one position after the other, up to the first whose token is not the candidate's.

    Where the constraint leaves nothing, the text ends with what is settled before; only if that is nothing at all is
    the GrammarError raised.
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
    """Accepts the candidates that equal the target's own choice, so that the text is what it would write alone."""

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
        """The target's token. Only if the constraint refuses it are all others looked at, which takes long."""
        recent = before[-self.n_recent :] if self.n_recent else ()
        token = self._sampler.sample(logits, position, recent)
        if self._constraint is not None:
            if not self._constraint.allows(token):
                token = self._sampler.sample(self._constraint.mask(logits), position, recent)
            self._constraint.accept(token)
        return token


class Rejection:
    """Rejection sampling, for the target.

    It is exact on three conditions. Candidates are considered from left to right. Whether candidate i is considered at
    all depends on nothing but the tokens before it and what was known at i *before* it was drawn, such as the shape of
    the draft's distribution or the time; nothing that comes later removes it (see Policy, `in_order`). And the numbers
    for the draft's draw, the coin, the residual and the target's own token are independent (duo/spec/noise.py).
    """

    def __init__(self, config: SamplingConfig, constraint: Constraint | None = None) -> None:
        self._seed = config.seed
        self._chain = Chain(config)
        self._constraint = constraint
        self.n_recent = self._chain.n_recent

    def verify(
        self, target_logits: Logits, candidates: Candidates, position: int, recent: Sequence[int] = ()
    ) -> Acceptance:
        """See Verifier. Every candidate carries the distribution that it was drawn from."""
        tokens = candidates.tokens
        guesses = (*candidates.guesses, None)
        return left_to_right(
            tokens, lambda i: self._settle(target_logits[i], guesses[i], position + i, (*recent, *tokens[:i]))
        )

    def _settle(self, logits: Logits, guess: Guess | None, position: int, before: Sequence[int]) -> int:
        """The text's token at `position`: the guess, if it stays."""
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
        assert guess.distribution is not None
        coin = uniform(self._seed, Purpose.COIN, position)
        if coin * guess.distribution.of(guess.token) < target.of(guess.token):
            return guess.token
        return draw(residual(target, guess.distribution), self._seed, Purpose.RESIDUAL, position)


class Proposer:
    """Rejection sampling, for the draft: draws from its own distribution and says what that is."""

    def __init__(self, config: SamplingConfig) -> None:
        self._seed = config.seed
        self._chain = Chain(config)
        self.n_recent = self._chain.n_recent

    def guess(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Guess:
        """A token drawn from the draft's distribution. The confidence does not know which: see Rejection."""
        ids, left = self._chain(logits, recent)
        sure = confidence(left, int(left.argmax()))
        scores = left + gumbel(self._seed, Purpose.DRAFT, position, ids)
        return Guess(int(ids[scores.argmax()]), sure, Distribution(ids, softmax(left)))

    def judge(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Guess:
        """What coupled sampling would guess: it is right about as often as a drawn token is accepted."""
        ids, left = self._chain(logits, recent)
        sure = confidence(left, int(left.argmax()))
        return Guess(int(ids[(left + gumbel(self._seed, Purpose.OWN, position, ids)).argmax()]), sure)


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """What is left of the target's distribution where the draft's is taken away; the target's if that is nothing."""
    at = np.minimum(draft.ids.searchsorted(target.ids), len(draft.ids) - 1)
    taken = np.where(draft.ids[at] == target.ids, draft.probabilities[at], 0.0)
    rest: Floats = np.maximum(target.probabilities - taken, 0.0)
    total = rest.sum()
    return Distribution(target.ids, rest / total) if total > 0 else target


def draw(distribution: Distribution, seed: int, purpose: Purpose, position: int) -> int:
    """A token of the distribution."""
    ids, probabilities = distribution
    possible = probabilities > 0
    ids = ids[possible]
    scores = np.log(probabilities[possible]) + gumbel(seed, purpose, position, ids)
    return int(ids[scores.argmax()])
