"""Measures a pair on this machine: the cost of decodes, sequential and concurrent, and the acceptance rate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from duo.diagnose.target_meter import SIZES, Progress, Stopped, TargetMeter
from duo.diagnose.timing import (
    ROUNDS,
    Group,
    MeasurementError,
    Series,
    draft_group,
    group_of_both,
    group_with_branches,
    target_group,
)
from duo.engine.decoder import Decoder
from duo.engine.drafter import Drafter
from duo.engine.metrics import Metrics
from duo.engine.queue import DraftUpdate
from duo.engine.translated import TranslatedTarget, Translation
from duo.errors import DuoError
from duo.spec.policy import Policy
from duo.spec.sampling import Greedy
from duo.spec.types import Guess

_DRAFT_TOKENS = 24
_MAX_ASKED = 16  # tokens of a draft with another vocabulary that predict nothing: then it has no prediction


@dataclass(slots=True)
class Measurements:
    """Times in seconds."""

    target: dict[tuple[int, int], float] = field(default_factory=dict)  # by (threads, tokens in the batch)
    draft: dict[int, float] = field(default_factory=dict)  # by threads
    pair: dict[int, float] = field(default_factory=dict)  # the draft's for two tokens in one decode, by threads
    # Concurrent, by threads of (target, draft): the target's times by tokens in the batch, and the draft's time.
    concurrent: dict[tuple[int, int], tuple[dict[int, float], float]] = field(default_factory=dict)
    branches: dict[int, float] = field(default_factory=dict)  # the concurrent draft's, by sequences in one decode
    scores: list[tuple[float, bool]] = field(default_factory=list)  # (confidence, accepted) of each candidate
    doubts: str = ""  # why the times are not reliable; empty: they are

    def scale_draft(self, factor: float) -> None:
        """Multiply the draft's times by its tokens for one of the target's."""
        self.draft, self.pair = ({n: factor * s for n, s in times.items()} for times in (self.draft, self.pair))
        self.concurrent = {split: (times, factor * seconds) for split, (times, seconds) in self.concurrent.items()}


class Meter(TargetMeter):
    """Measures one pair of contexts, on the calling thread. Raises Stopped soon after `stop` is set."""

    def __init__(
        self,
        target: Decoder,
        draft: Decoder,
        progress: Progress,
        stop: threading.Event,
        n_jobs: int = 1,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """See TargetMeter."""
        super().__init__(target, progress, stop, n_jobs, note)
        self._draft = draft

    def measure(
        self,
        target_threads: Sequence[int],
        draft_threads: Sequence[int],
        splits: Sequence[tuple[int, int]],
        n_more: int,
    ) -> Measurements:
        """Measure all times for these numbers of threads. `n_more`: what will be measured later.

        It may leave out sizes. Raises MeasurementError if it has too little.
        """
        alone = [target_group(n_threads, self._sizes) for n_threads in target_threads]
        drafts = [draft_group(n_threads) for n_threads in draft_threads]
        pairs = [draft_group(n_threads, 2) for n_threads in draft_threads]
        both = [group_of_both(split, self._sizes) for split in splits]
        n_times = (len(alone) + len(both)) * len(self._sizes) + len(drafts) + len(pairs)
        self._n_jobs = round(self._n_done) + n_times + n_more
        self._settle([*alone, *drafts, *pairs, *both])
        found = Measurements(doubts=self.doubts)
        for group in alone:
            found.target |= {(group.threads[0], n): seconds for n, seconds in group.times.items()}
        for groups, times in ((drafts, found.draft), (pairs, found.pair)):
            times |= {group.threads[1]: _draft_s(group) for group in groups if group.is_known}
        found.concurrent = {group.threads: (group.times, _draft_s(group)) for group in both if group.is_known}
        if not found.target or not found.draft or not found.concurrent:
            raise MeasurementError(f"the machine cannot be measured now: {self.doubts}; try again when it is idle")
        return found

    def branches(self, split: tuple[int, int], sizes: Sequence[int]) -> dict[int, float]:
        """The concurrent draft's time for one token in each of several sequences, by their number.

        `split`: threads of target and draft. `sizes`: the numbers, for which the draft's context must have room.
        """
        groups = [group_with_branches(split, n) for n in sizes]
        self._settle(groups)
        return {group.n_sequences: _draft_s(group) for group in groups if group.is_known}

    def draft_time(self, n_threads: int, n_tokens: int = 1) -> float:
        """The draft's time for a decode of so many tokens."""
        return _draft_s(self._settled(draft_group(n_threads, n_tokens)))

    def score(
        self, prompt: Sequence[int], text: Sequence[int], n_threads: int, translation: Translation | None = None
    ) -> tuple[list[tuple[float, bool]], float]:
        """The (confidence, accepted) of the draft's prediction of each token of `text`, and its tokens for each.

        `text` is what the target writes after `prompt`. The scores end before a token that the draft does not have.
        `translation`: of a draft with another vocabulary.
        """
        self._begin("the draft's acceptance rate")
        self._draft.set_threads(n_threads, n_threads)
        self._draft.rollback(0)
        reader = _Reader(prompt)
        metrics, translator = Metrics(), None
        if translation is None:
            drafter = Drafter(self._draft, reader, Greedy(), self._target.n_vocab, metrics, prompt)
        else:
            tokens, translator = translation.begin(prompt)
            side = TranslatedTarget(reader, translator, metrics)
            drafter = Drafter(self._draft, side, translation.guesser(ends=True), self._draft.n_vocab, metrics, tokens)
        scores: list[tuple[float, bool]] = []
        for right in text:
            n_asked = 0
            while reader.guess is None and n_asked < _MAX_ASKED:
                self._check()
                if not drafter.step():
                    return scores, 1.0
                n_asked += 1
            scores.append(reader.accept(right))
        return scores, 1.0 if translator is None else translator.ratio

    def both(self, split: tuple[int, int], sizes: Sequence[int] = SIZES) -> tuple[dict[int, float], float]:
        """The times of both models running concurrently, each on its own thread: the target's by `sizes`, the draft's.

        `split`: threads of target and draft.
        """
        group = self._settled(group_of_both(split, sizes))
        return group.times, _draft_s(group)

    def _run(self, group: Group, *, again: bool) -> None:
        """See TargetMeter."""
        if group.draft is None:
            super()._run(group, again=again)
            return
        self._prepare(self._draft, group.threads[1])
        if not group.target:
            self._begin(group.draft.what, 0.0 if again else 1 / ROUNDS)
            tokens = list(range(200, 200 + group.n_tokens))
            for _ in range(_DRAFT_TOKENS // ROUNDS):
                self._time_call(self._draft, lambda: self._draft.decode(tokens), group.draft)
            return
        with self._drafting(group.draft, group.n_sequences):
            super()._run(group, again=again)

    @contextmanager
    def _drafting(self, series: Series, n_sequences: int) -> Iterator[None]:
        """Time the draft concurrently, on a thread of its own. Raises at the end what that has raised."""
        failures: list[Exception] = []
        done = threading.Event()

        def draft() -> None:
            try:
                while not done.is_set():
                    self._time_draft(n_sequences, series)
            except (Stopped, DuoError) as error:
                failures.append(error)

        drafting = threading.Thread(target=draft, name="duo-draft")
        drafting.start()
        try:
            yield
        finally:
            done.set()
            drafting.join()
        if failures:
            raise failures[0]

    def _time_draft(self, n_sequences: int, series: Series) -> None:
        """Time one token of the draft in each sequence."""
        if n_sequences == 1:
            self._time(self._draft, 1, series)
            return
        draft, branches = self._draft, range(1, n_sequences)
        for sequence in branches:
            draft.branch(sequence, draft.n_past)
        tokens = [(sequence, 200 + sequence) for sequence in range(n_sequences)]
        self._time_call(draft, lambda: draft.decode_each(tokens), series)
        for sequence in branches:
            draft.drop(sequence)


def _draft_s(group: Group) -> float:
    assert group.draft is not None
    return group.draft.seconds


def learn_scores(policy: Policy, scores: Sequence[tuple[float, bool]]) -> None:
    """Learn all scores of a measurement alike; in a run, the last of them count most."""
    policy.learn_scores(scores)
    share = sum(right for _, right in scores) / len(scores)
    policy.calibration.restore(policy.calibration.state() | {"mean": share})


class _Reader:
    """The draft's target (a TargetSide) while it reads a finished text, one token at a time."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._fresh = list(prompt)
        self._position = len(prompt)  # of the next token
        self._guesses: dict[int, Guess] = {}  # by position

    @property
    def guess(self) -> Guess | None:
        """The draft's prediction of the next token, once there is one."""
        return self._guesses.get(self._position)

    def accept(self, right: int) -> tuple[float, bool]:
        """The next token is `right`. Returns the confidence of the draft's prediction, and whether it is right."""
        guess = self.guess
        is_right = guess is not None and guess.token == right
        if not is_right:
            self._guesses.clear()
        self._position += 1
        self._fresh.append(right)
        return guess.confidence if guess is not None else 0.0, is_right

    def begin(self) -> DraftUpdate:
        """See TargetSide."""
        fresh, self._fresh = self._fresh, []
        return DraftUpdate(0, fresh)

    def publish(self, epoch: int, position: int, guess: Guess, n_tokens: int, seconds: float) -> bool:  # noqa: ARG002
        """See TargetSide."""
        self._guesses[position] = guess
        return True
