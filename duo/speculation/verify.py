"""Verification: which candidates are accepted, and the target's own token after them.

*Matching* accepts a candidate if it equals the target's own choice; it applies whenever the choice is a function of
logits and position: greedy or coupled sampling (sampling.py). *Rejection sampling* (Leviathan et al. 2023;
Chen et al. 2023): the draft draws from its own distribution q, and a candidate x is accepted with probability
min(1, p(x)/q(x)).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from duo.config import SamplingConfig
from duo.errors import GrammarError
from duo.speculation.noise import Purpose, gumbel, uniform
from duo.speculation.sampling import Chain, Greedy, confidence, softmax
from duo.speculation.types import Candidate, Distribution, Floats, Logits, Outcome


class Constraint(Protocol):
    """A stateful constraint on the text, such as a grammar."""

    def allows(self, token: int) -> bool:
        """Whether the text may continue with `token`."""

    def mask(self, logits: Logits) -> Logits:
        """A copy of logits `[n_vocab]` with -inf for all tokens that are not allowed."""

    def accept(self, token: int) -> None:
        """The text continues with `token`, which is allowed."""


class Verifier:
    """Decides which candidates to accept."""

    n_recent = 0  # number of preceding tokens that its decisions depend on

    def __init__(self, constraint: Constraint | None = None) -> None:
        self._constraint = constraint

    def verify(
        self, target_logits: Logits, candidates: Sequence[Candidate], position: int, recent: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """The accepted candidates, then the target's own token: *recovered* after a rejection, else the *bonus*.

        target_logits: `[k+1, n_vocab]`; row i predicts the token after `candidates[:i]`, at `position + i`. `recent`:
        the last `n_recent` tokens before `position`. Raises GrammarError if no token is allowed at `position`, and what
        the constraint raises. If none is allowed later, the text ends with the tokens before.
        """
        tokens = tuple([candidate.token for candidate in candidates])
        for i, candidate in enumerate((*candidates, None)):
            before = (*recent, *tokens[:i])[-self.n_recent :] if self.n_recent else ()
            try:
                token = self._settle(target_logits[i], candidate, position + i, before)
            except GrammarError:
                if not i:
                    raise
                return tokens[:i]
            if candidate is None or token != candidate.token:
                break
        return *tokens[:i], token

    def verify_with(
        self, target_logits: Logits, candidates: Sequence[Candidate], alternatives: Sequence[Outcome], position: int,
        recent: Sequence[int] = (),
    ) -> tuple[tuple[int, ...], int]:  # fmt: skip
        """As verify(); where the target's token is one of the `alternatives` to a candidate, with one more after it.

        Row k+1+i is after alternative i: see Plan. That of the alternative that came true, whose index is returned too
        (-1: none has), is copied to where it would be if it were a candidate.
        """
        added, n = self.verify(target_logits, candidates, position, recent), len(candidates)
        at = len(added) - 1
        found = next((i for i, one in enumerate(alternatives) if at < n and one == (at, added[at])), -1)
        if found < 0:
            return added, found
        target_logits[at + 1] = target_logits[n + 1 + found]
        before = (*recent, *added)[-self.n_recent :] if self.n_recent else ()
        try:
            return (*added, *self.verify(target_logits[at + 1 :], (), position + at + 1, before)), found
        except GrammarError:  # as at the beginning of the next step
            return added, -1

    def _settle(self, logits: Logits, candidate: Candidate | None, position: int, recent: Sequence[int]) -> int:
        """The token at `position`. Masking the whole vocabulary is slow, so it is done only if that is not allowed.

        The choice among the allowed ones by the same Gumbel noise is independent of whether the first was allowed.
        """
        token = self._choose(logits, candidate, position, recent)
        if self._constraint is not None:
            if not self._constraint.allows(token):
                token = self._choose(self._constraint.mask(logits), None, position, recent)
            self._constraint.accept(token)
        return token

    def _choose(self, logits: Logits, candidate: Candidate | None, position: int, recent: Sequence[int]) -> int:
        """The token at `position`: that of `candidate` if it is accepted."""
        raise NotImplementedError


class Matching(Verifier):
    """Accepts the candidates that equal the target's own choice, so the text is that of the target alone."""

    def __init__(self, sampler: Greedy, constraint: Constraint | None = None) -> None:
        super().__init__(constraint)
        self._sampler = sampler
        self.n_recent = sampler.n_recent

    def _choose(self, logits: Logits, candidate: Candidate | None, position: int, recent: Sequence[int]) -> int:  # noqa: ARG002
        return self._sampler.sample(logits, position, recent)


class Rejection(Verifier):
    """Rejection sampling, for the target.

    It is exact under three conditions. Candidates are considered from left to right. Whether candidate i is considered
    depends only on the tokens before it and on what was known at i *before* it was drawn, such as the draft's
    distribution or the time, and on nothing later (see best_in_order() in decision.py). The random numbers for
    the draft's draw, the coin, the residual and the target's own token are independent (noise.py).

    A candidate without the distribution that it was drawn from was certain to its draft.
    """

    def __init__(self, config: SamplingConfig, constraint: Constraint | None = None) -> None:
        super().__init__(constraint)
        self._seed = config.seed
        self._chain = Chain(config)
        self.n_recent = self._chain.n_recent

    def _choose(self, logits: Logits, candidate: Candidate | None, position: int, recent: Sequence[int]) -> int:
        target = self._chain.distribution(logits, recent)
        if candidate is None:
            return draw(target, self._seed, Purpose.OWN, position)
        return self._judge(target, candidate, position)

    def _judge(self, target: Distribution, candidate: Candidate, position: int) -> int:
        draft = candidate.distribution or Distribution(np.array([candidate.token]), np.ones(1))
        coin = uniform(self._seed, Purpose.COIN, position)
        if coin * draft.of(candidate.token) < target.of(candidate.token):
            return candidate.token
        return draw(residual(target, draft), self._seed, Purpose.RESIDUAL, position)


class DraftSampler:
    """Rejection sampling, for the draft: draws from its own distribution and attaches it."""

    def __init__(self, config: SamplingConfig) -> None:
        self._seed = config.seed
        self._chain = Chain(config)
        self.n_recent = self._chain.n_recent

    def candidate(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Candidate:
        """A token drawn from the draft's distribution. The confidence is independent of the draw: see Rejection."""
        ids, left = self._chain(logits, recent)
        scores = left + gumbel(self._seed, Purpose.DRAFT, position, ids)
        return Candidate(int(ids[scores.argmax()]), confidence(left), Distribution(ids, softmax(left)))

    def judge(self, logits: Logits, position: int, recent: Sequence[int] = ()) -> Candidate:
        """The token of coupled sampling, which is right about as often as a drawn token is accepted."""
        ids, left = self._chain(logits, recent)
        scores = left + gumbel(self._seed, Purpose.OWN, position, ids)
        return Candidate(int(ids[scores.argmax()]), confidence(left))


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """The normalised positive part of `target` - `draft`; `target` itself if that is empty."""
    at = np.minimum(draft.ids.searchsorted(target.ids), len(draft.ids) - 1)
    taken = np.where(draft.ids[at] == target.ids, draft.probabilities[at], 0.0)
    rest: Floats = np.maximum(target.probabilities - taken, 0.0)
    total = rest.sum()
    return Distribution(target.ids, rest / total) if total > 0 else target


def draw(distribution: Distribution, seed: int, purpose: Purpose, position: int) -> int:
    """Draw a token, as the arg-max of log p + Gumbel noise."""
    possible = distribution.probabilities > 0
    ids = distribution.ids[possible]
    scores = np.log(distribution.probabilities[possible]) + gumbel(seed, purpose, position, ids)
    return int(ids[scores.argmax()])
