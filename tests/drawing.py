"""One token drawn many times by an engine, each time beside a candidate, and what it should have been."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from duo.config import GenerationConfig, StopConfig
from duo.engine.decoder import decode_all
from duo.engine.engine import Engine
from duo.engine.slot import Drafts, Slot
from duo.spec.policy import Decision, Policy
from duo.spec.schedule import Schedule
from duo.spec.types import Distribution, Logits
from tests.goodness import chi_square, total_variation, variation_bound


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token after the same prompt, drawn with many seeds, and what it should have been."""

    counts: dict[int, int]
    n_verified: int  # how many of them stood beside a candidate
    n_accepted: int
    expected: Distribution

    @property
    def variation(self) -> float:
        """The total variation between what was drawn and what should have been."""
        return total_variation(self._cells(), self.expected.probabilities) if self._is_possible() else 1.0

    @property
    def bound(self) -> float:
        """What `variation` exceeds once in a million times if all is well."""
        return variation_bound(self.expected.probabilities, sum(self.counts.values()))

    @property
    def p_value(self) -> float:
        """How likely these draws, or worse ones, are if all is well."""
        return chi_square(self._cells(), self.expected.probabilities) if self._is_possible() else 0.0

    def _cells(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([self.counts.get(int(token), 0) for token in self.expected.ids], np.int64)

    def _is_possible(self) -> bool:
        return all(self.expected.of(token) > 0 for token in self.counts)


class Insisting(Policy):
    """Has the draft make one candidate for every step, and verifies it, whether that pays or not."""

    def __init__(self, draft_threads: Sequence[int]) -> None:
        super().__init__(1, 1, (Schedule.SYNC,), draft_threads)

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        """One, if there is room."""
        n = min(1, n_room - 1)
        return Decision(0, next_s) if len(confidences) < n and next_s < float("inf") else Decision(n)


def draw(
    engine: Engine,
    config: GenerationConfig,
    prompt: Sequence[int],
    seeds: Sequence[int],
    distribution: Callable[[Logits], Distribution],
) -> Drawn:
    """The token after `prompt`, once with each seed, each time with a candidate to verify."""
    row = engine.call(lambda slot: _two_rows(slot, prompt))
    draft_threads = engine.slot.threads.draft
    counts: Counter[int] = Counter()
    n_verified = n_accepted = 0
    for i, seed in enumerate((seeds[0], *seeds)):
        seeded = replace(config, sampling=replace(config.sampling, seed=seed), stop=StopConfig(2))
        drafts = Drafts(engine.slot.new_draft(Insisting(draft_threads)))
        with engine.start(prompt, seeded, drafts=drafts) as stream:
            token = next(stream).tokens[0]
        if i == 0:  # it has brought the prompt into the caches
            continue
        counts[token] += 1
        first = stream.request.metrics.steps[0]
        n_verified += first.n_candidates > 0
        n_accepted += first.n_accepted
    return Drawn(dict(counts), n_verified, n_accepted, distribution(row))


def _two_rows(slot: Slot, prompt: Sequence[int]) -> Logits:
    """The logits after `prompt`, in a batch of two rows, as candidates are."""
    assert slot.target_cache is not None
    target = slot.target_cache.context
    target.set_threads(slot.threads.target, slot.threads.target)
    target.rollback(0)
    if len(prompt) > 1:
        decode_all(target, prompt[:-1])
    row: Logits = target.decode([prompt[-1]] * 2, 2)[0].copy()
    target.rollback(0)
    return row
