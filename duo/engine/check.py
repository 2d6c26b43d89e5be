"""Whether a draft changes what a target writes: the same prompts with it and without, and one token many times."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from duo.config import ThreadConfig
from duo.engine.decoder import Decoder, decode_all, return_to
from duo.engine.generation import Generation
from duo.engine.metrics import Metrics
from duo.engine.text import Ending
from duo.errors import DecodeError
from duo.spec.goodness import chi_square, total_variation, variation_bound
from duo.spec.policy import Decision, Policy
from duo.spec.sampling import Guesser
from duo.spec.schedule import Schedule
from duo.spec.types import Distribution, Step
from duo.spec.verify import Verifier

_SEVERAL = 5  # rows in a batch, where one row is compared with several

Choosing = Callable[[int], tuple[Verifier, Guesser]]  # from a seed


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two texts part."""

    index: int  # of the first token that differs
    alone: int  # what the target wrote there without a draft; -1: its text had ended
    drafted: int  # and with one
    gap: float  # between its two best scores there
    kernels: float  # by which scores differ there between batches of one row and of several
    flips: bool  # whether the target alone writes something else there in batches of several rows

    @property
    def is_near_tie(self) -> bool:
        """Whether the size of a batch decides: on a gap that is small enough, or on who is left by a filter."""
        return self.flips or self.gap <= 2 * self.kernels


@dataclass(frozen=True, slots=True)
class Comparison:
    """One text, written with a draft and without."""

    n_tokens: int
    n_verified: int
    n_accepted: int
    difference: Difference | None


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
        super().__init__(1, 1, (Schedule.SYNC,), draft_threads, in_order=True)

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        """One, if there is room."""
        n = min(1, n_room - 1)
        return Decision(0, next_s) if len(confidences) < n and next_s < float("inf") else Decision(n)


class Checker:
    """Writes with a target and a draft, and with the target alone. All on one thread at a time."""

    def __init__(
        self,
        target: Decoder,
        draft: Decoder,
        threads: ThreadConfig,
        choosing: Choosing,
        make_ending: Callable[[int | None], Ending],
        stop: threading.Event,
    ) -> None:
        """`make_ending` makes one for so many tokens; None: for as many as were asked for."""
        self._target = target
        self._draft = draft
        self._threads = threads
        self._choosing = choosing
        self._make_ending = make_ending
        self._stop = stop

    def compare(self, prompt: Sequence[int], seed: int, policy: Policy, scale: float = 1.0) -> Comparison:
        """Write after `prompt` with the draft and `policy`, and without. `scale`: of scores to logits."""
        metrics = Metrics()
        drafted = self._write(prompt, seed, policy, metrics, None)
        alone = self._write(prompt, seed, None, Metrics(), None)
        n_same = next(
            (i for i, pair in enumerate(zip(alone, drafted, strict=False)) if pair[0] != pair[1]),
            min(len(alone), len(drafted)),
        )
        verified, accepted = (sum(getattr(step, n) for step in metrics.steps) for n in ("n_candidates", "n_accepted"))
        difference = None
        if not n_same == len(alone) == len(drafted):
            gap, kernels, flips = self._margin([*prompt, *alone[:n_same]], seed)
            first = [text[n_same] if n_same < len(text) else -1 for text in (alone, drafted)]
            difference = Difference(n_same, first[0], first[1], gap, kernels * scale, flips)
        return Comparison(len(alone), verified, accepted, difference)

    def draw(
        self,
        prompt: Sequence[int],
        seeds: Sequence[int],
        distribution: Callable[[np.ndarray, Sequence[int]], Distribution],
        progress: Callable[[int], None],
    ) -> Drawn:
        """The token after `prompt`, once with each seed, each time with a candidate to verify."""
        last = len(prompt) - 1
        for decoder in (self._target, self._draft):
            decoder.set_threads(self._threads.target, self._threads.target)
            decoder.rollback(0)
            decode_all(decoder, prompt)
        return_to(self._target, prompt[:-1])
        # In a batch of two rows, as candidates are.
        row = self._target.decode([prompt[-1]] * 2, 2)[0].copy()
        counts: Counter[int] = Counter()
        n_verified = n_accepted = 0
        for n, seed in enumerate(seeds):
            if self._stop.is_set():
                break
            progress(n)
            metrics = Metrics()
            counts[self._write(prompt, seed, Insisting(self._threads.draft), metrics, last)[0]] += 1
            n_verified += metrics.steps[0].n_candidates > 0
            n_accepted += metrics.steps[0].n_accepted
        return Drawn(dict(counts), n_verified, n_accepted, distribution(row, prompt))

    def _write(
        self, prompt: Sequence[int], seed: int, policy: Policy | None, metrics: Metrics, n_kept: int | None
    ) -> list[int]:
        """The text with a draft, or without if there is no policy.

        If the first `n_kept` tokens are in the caches already, only one step of it.
        """
        return_to(self._target, prompt[: n_kept or 0])
        if policy is not None:
            self._draft.rollback(n_kept or 0)
        verifier, guesser = self._choosing(seed)
        ending = self._make_ending(None if n_kept is None else 2)
        draft = self._draft if policy is not None else None
        generation = Generation(
            self._target, draft, prompt, verifier, guesser, ending, policy or Policy(0, 0), self._threads, metrics
        )
        tokens: list[int] = []
        enough = self._stop if n_kept is None else threading.Event()

        def take(step: Step) -> None:
            tokens.extend(step.tokens)
            if n_kept is not None:
                enough.set()

        generation.run(take, enough)
        if metrics.draft_error is not None:
            raise DecodeError(f"the draft failed ({metrics.draft_error}): nothing can be checked")
        return tokens

    def _margin(self, text: Sequence[int], seed: int) -> tuple[float, float, bool]:
        """The gap between the two best scores after `text`, how far logits differ by the rows of the batches in which
        it is read, and whether the choice does.
        """
        _, guesser = self._choosing(seed)
        recent = text[-guesser.n_recent :] if guesser.n_recent else ()
        rows = []
        for n in (1, _SEVERAL):
            self._target.rollback(0)
            for start in range(0, len(text), n):
                row = self._target.decode(text[start : start + n])[0]
            rows.append(row.copy())
        one, several = (guesser.judge(row.copy(), len(text), recent) for row in rows)
        return one.confidence, float(np.abs(rows[0] - rows[1]).max()), one.token != several.token
