"""Times of decodes: repeated, judged, and what a policy learns from them."""

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

from duo.config import AUTO_DRAFT
from duo.speculation.modes import ALL, Schedule
from duo.speculation.policy import Policy

ROUNDS = 3  # of all measurements, at least: the speed of a machine changes within seconds
Times = dict[int, float]  # seconds, by tokens in the batch
_ERROR = 0.1  # largest standard error of a median, relative to it


@dataclass(slots=True)
class Measurements:
    """Times in seconds, by threads, and then by tokens in the batch."""

    target: dict[int, Times] = field(default_factory=dict)
    draft: dict[int, Times] = field(default_factory=dict)  # for one token, and for two
    # Concurrent, by threads of (target, draft): the target's times, and the draft's for one token.
    concurrent: dict[tuple[int, int], tuple[Times, float]] = field(default_factory=dict)
    branches: dict[int, float] = field(default_factory=dict)  # the concurrent draft's, by sequences in one decode
    scores: list[tuple[float, bool]] = field(default_factory=list)  # (confidence, accepted) of each candidate
    n_depths: int = 1  # of candidates: see Acceptance
    schedules: Sequence[Schedule] = ALL  # that are possible
    doubts: str = ""  # why the times are not reliable; empty: they are

    @property
    def fastest_draft(self) -> int:
        """The number of threads with which the draft is fastest."""
        return min(self.draft, key=lambda n: self.draft[n][1])

    @property
    def acceptance(self) -> float:
        """The share of the draft's predictions that are right."""
        return sum(right for _, right in self.scores) / len(self.scores) if self.scores else 0.0

    def add_scores(self, scored: Sequence[tuple[list[tuple[float, bool]], float]]) -> None:
        """Add what Meter.score() has returned for each text; the draft's times become those of a target's token."""
        self.scores = [score for scores, _ in scored for score in scores]
        factor = sum(ratio for _, ratio in scored) / len(scored)
        self.draft = {threads: {n: factor * s for n, s in times.items()} for threads, times in self.draft.items()}
        self.concurrent = {split: (times, factor * seconds) for split, (times, seconds) in self.concurrent.items()}

    def policy(self, n_target: int, split: tuple[int, int], n_max: int = AUTO_DRAFT) -> Policy:
        """A policy that has learned what was measured with these threads: of the target alone, and of both."""
        n_draft, alone = self.fastest_draft, self.target[n_target]
        limits = (n_max, 2 * n_max, self.schedules)
        policy = Policy(*limits, draft_threads=(n_draft,), branches=None, n_depths=self.n_depths)
        policy.begin(0, mode="greedy")
        # A concurrent decode cannot be faster, nor one of two tokens: where it seems so, the measurement is noisy.
        (concurrent, concurrent_draft_s), draft_s = self.concurrent[split], self.draft[n_draft][1]
        concurrent_draft_s = max(draft_s, concurrent_draft_s)
        for n, seconds in alone.items():
            policy.alone.add_target(n, seconds)
        for n, seconds in concurrent.items():
            policy.concurrent.add_target(n, max(seconds, alone.get(n, 0.0)))
        policy.alone.add_draft(draft_s, n_draft)
        if 2 in self.draft[n_draft]:
            policy.alone.add_pair(max(draft_s, self.draft[n_draft][2]))
        policy.concurrent.add_draft(concurrent_draft_s)
        for n, seconds in self.branches.items():
            policy.concurrent.add_draft(max(concurrent_draft_s, seconds), n_sequences=n)
        if self.scores:
            policy.learn_scores(self.scores)  # of which the last count most in a run; here all count alike
            policy.calibration.restore(policy.calibration.state() | {"mean": self.acceptance})
        return policy


@dataclass(slots=True, eq=False)
class Series:
    """The times of one decode, in seconds, repeated."""

    times: list[float] = field(default_factory=list)  # undisturbed
    disturbed: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median; if all were disturbed, which makes a decode longer, the lower quartile; 0: no times."""
        times, share = (self.times, 50) if self.times else (self.disturbed, 25)
        return float(np.percentile(times, share)) if times else 0.0

    @property
    def is_settled(self) -> bool:
        """Whether there are enough times for their spread."""
        if len(self.times) < ROUNDS:
            return False
        low, middle = np.percentile(self.times, (25, 50))  # what disturbs makes only the others longer
        return bool(2 * (middle - low) / math.sqrt(len(self.times)) <= _ERROR * middle)


@dataclass(slots=True, eq=False)
class Group:
    """Decodes that are timed together: of the target, or of the draft alone; or of both, the draft's concurrently."""

    threads: tuple[int, int]  # of target and draft; 0: it does not run
    sizes: InitVar[Sequence[int]]
    n_sequences: int = 1  # of the concurrent draft in one decode
    timed: dict[int, Series] = field(init=False)  # by tokens in the batch
    concurrent: Series = field(default_factory=Series)  # of the concurrent draft

    def __post_init__(self, sizes: Sequence[int]) -> None:
        self.timed = {n: Series() for n in sizes}

    def __str__(self) -> str:
        named = zip(("target", "draft"), self.threads, strict=True)
        return " and ".join(f"the {name} on {n} threads" for name, n in named if n)

    @property
    def is_settled(self) -> bool:
        """Whether nothing needs to be measured again."""
        return all(series.is_settled for series in self.timed.values()) and (
            self.concurrent.is_settled or not all(self.threads)
        )

    @property
    def times(self) -> Times:
        """None without those of the smallest batch and of a concurrent draft."""
        found = {n: series.seconds for n, series in self.timed.items() if series.seconds}
        return found if min(self.timed) in found and (self.concurrent.seconds or not all(self.threads)) else {}
