"""Verifiers with a small bias, each of which the proof has to detect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from duo.config import SamplingConfig
from duo.spec.noise import Purpose, gumbel, uniform
from duo.spec.sampling import Coupled
from duo.spec.types import Distribution, Guess, Logits
from duo.spec.verify import Matching, Rejection, Verifier, draw, residual


class Generous(Rejection):
    """Accepts one candidate in 25 whatever the coin says."""

    def _judge(self, target: Distribution, guess: Guess, position: int) -> int:
        if uniform(self._seed + 1, Purpose.COIN, position) < 1 / 25:
            return guess.token
        return super()._judge(target, guess, position)


class ResidualOfDraw(Rejection):
    """Draws the residual with the noise of the draft's draw."""

    def _judge(self, target: Distribution, guess: Guess, position: int) -> int:
        token = super()._judge(target, guess, position)
        if token == guess.token or guess.distribution is None:
            return token
        return draw(residual(target, guess.distribution), self._seed, Purpose.DRAFT, position)


class BonusOfDraw(Rejection):
    """Draws the bonus with the noise that drew the candidate before it."""

    def _settle(self, logits: Logits, guess: Guess | None, position: int, recent: Sequence[int]) -> int:
        if guess is not None:
            return super()._settle(logits, guess, position, recent)
        return draw(self._chain.distribution(logits, ()), self._seed, Purpose.DRAFT, position - 1)


class FarSighted(Rejection):
    """Drops a candidate if the draft's confidence in the next one was low."""

    def verify(
        self, target_logits: Logits, candidates: Sequence[Guess], position: int, recent: Sequence[int] = ()
    ) -> tuple[int, ...]:
        n = next((i for i, guess in enumerate(candidates[1:]) if guess.confidence <= 0.5), len(candidates))
        return super().verify(target_logits, candidates[:n], position, recent)


class Halved(Coupled):
    """Uses the same noise at two consecutive positions."""

    def _scores(self, logits: Logits, position: int, recent: Sequence[int]) -> tuple[np.ndarray, Logits]:
        ids, left = self._chain(logits, recent)
        return ids, left + gumbel(self._seed, Purpose.OWN, position // 2, ids)


def halved(config: SamplingConfig) -> Verifier:
    """Coupled, with the same noise at two positions."""
    return Matching(Halved(config))
