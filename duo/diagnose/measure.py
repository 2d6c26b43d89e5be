"""Measures models on this machine: what decodes cost, the texts of a target, and how often a draft is right."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

from duo.diagnose.timing import ROUNDS, Group, Measurements, Series
from duo.engine.cores import ON_CPU, usable_cores
from duo.engine.decoder import Decoder, decode_all, return_to
from duo.engine.drafter import Drafter
from duo.engine.free_cores import cpu_times, is_busy, other_cpu_use
from duo.engine.metrics import Metrics
from duo.engine.queue import DraftUpdate
from duo.engine.translated import TranslatedTarget, Translation
from duo.errors import DuoError
from duo.spec.sampling import Greedy
from duo.spec.types import Guess

SIZES = tuple(range(1, 18))  # of batches: up to sixteen candidates and the token before them
_FEW_SIZES = (1, 2, 3, 4, 5, 8, 12, 17)  # that are timed if a decode is slow
_SLOW_S = 0.25  # for the largest batch
_ROUND_S = 0.033  # for the times of one size, in each round
_DRAFTS = 8  # decodes of the draft alone, in each round
_WINDOW_S = 0.5  # within which the processor time of other programs is compared
_SLOWER = 1.3  # most decodes are concurrent
_TEXT_SLOWER = 1.5  # a text takes the target, and the draft
_PATIENCE_S, _PATIENCE = 20.0, 2.5  # the limit: seconds, and more for each that is expected
_PROMPT = list(range(100, 132))  # the tokens in the cache while a decode is timed
_MAX_ASKED = 16  # tokens of a draft with another vocabulary that predict nothing: then it has no prediction

Progress = Callable[[str, float], object]  # called with what is measured, and the share that is done


class Stopped(Exception):
    """Measuring was cancelled."""


class MeasurementError(DuoError):
    """No reliable times could be measured."""


class Meter:
    """Measures a target and a draft, if there is one, on the calling thread. Raises Stopped soon after `stop` is set.

    Times that other programs have disturbed are not used: it measures again. If there are no reliable times before the
    limit that announce() has set, it uses the others, and `doubts` says why. It raises MeasurementError if there are
    none at all. The contexts must have room for 64 tokens and 32 rows of logits.
    """

    def __init__(
        self,
        target: Decoder,
        draft: Decoder | None,
        progress: Progress,
        stop: threading.Event,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`note` gets a line for people when the machine is busy."""
        self.doubts = ""  # why the times are not reliable; empty: they are
        self._target, self._draft = target, draft
        self._progress, self._stop, self._note = progress, stop, note
        self._told = False  # that other programs compute
        self._sizes: Sequence[int] = SIZES
        self._begin = time.perf_counter()
        self._expected_s = self._end = math.inf
        self._n_threads = 1  # the most that compute
        self._n_others = 0.0  # processors that other programs used
        self._since = cpu_times()

    def announce(self, n_threads: int, n_groups: float, n_tokens: int, places: frozenset[str]) -> tuple[int, int]:
        """Seconds that measuring will take, and the limit to which it is held from now on.

        `n_threads`: the most that are used. `n_groups`: of numbers of threads that are timed. `n_tokens`: of the texts.
        `places`: where the target is; on the CPU, busy or not, its times are told from those of one thread.
        """
        on_cpu, self._n_threads = places == ON_CPU, n_threads
        self._prepare(self._target, 1 if on_cpu else n_threads)
        clock = time.process_time if on_cpu else time.perf_counter
        one_s = min(self._seconds(self._target, lambda: self._target.decode([200]), clock) for _ in range(3))
        self._sizes = SIZES if one_s * _guessed(SIZES[-1]) < _SLOW_S * n_threads else _FEW_SIZES
        times = [ROUNDS * max(_ROUND_S, one_s * _guessed(n) / n_threads) for n in self._sizes]
        self._expected_s = _SLOWER * n_groups * sum(times) + _TEXT_SLOWER * n_tokens * one_s / n_threads
        limit_s = _PATIENCE_S + _PATIENCE * self._expected_s
        self._begin = time.perf_counter()
        self._end = self._begin + limit_s
        return math.ceil(self._expected_s), math.ceil(limit_s)

    def measure(
        self,
        target_threads: Sequence[int],
        draft_threads: Sequence[int] = (),
        splits: Sequence[tuple[int, int]] = (),
        concurrent_sizes: Sequence[int] = (),
    ) -> Measurements:
        """All times for these numbers of threads; concurrent ones for these sizes (default: all).

        May leave out sizes. Raises MeasurementError if it has too little.
        """
        alone = [_group((n, 0), self._sizes) for n in target_threads]
        drafts = [Group((0, n)) for n in draft_threads]
        pairs = [Group((0, n), n_tokens=2) for n in draft_threads]
        both = [_group(split, concurrent_sizes or self._sizes) for split in splits]
        self._measure([*alone, *drafts, *pairs, *both])
        found = Measurements(doubts=self.doubts)
        for group in alone:
            found.target |= {(group.threads[0], n): seconds for n, seconds in group.times.items() if group.is_known}
        for groups, times in ((drafts, found.draft), (pairs, found.pair)):
            times |= {group.threads[1]: s for group in groups if (s := group.draft.seconds) is not None}
        for group in both:
            if group.is_known and (draft_s := group.draft.seconds) is not None:
                found.concurrent[group.threads] = group.times, draft_s
        if any(
            asked and not got for asked, got in ((alone, found.target), (drafts, found.draft), (both, found.concurrent))
        ):
            raise self._failure()
        return found

    def branches(self, split: tuple[int, int], sizes: Sequence[int]) -> dict[int, float]:
        """The concurrent draft's time for one token in each of several sequences, by their number.

        `split`: threads of target and draft. `sizes`: the numbers, for which the draft's context must have room.
        """
        groups = [Group(split, {5: Series()}, n_sequences=n) for n in sizes]  # beside a typical batch
        self._measure(groups)
        return {group.n_sequences: s for group in groups if (s := group.draft.seconds) is not None}

    def write(
        self, prompt: Sequence[int], n_tokens: int, n_threads: int, is_end: Callable[[int], bool] = lambda _: False
    ) -> list[int]:
        """The tokens that the target writes after `prompt`: `n_tokens`, or fewer if it ends the text before."""
        self._target.set_threads(n_threads, n_threads)
        self._target.rollback(0)
        sampler, text = Greedy(), list[int]()
        logits = decode_all(self._target, prompt)
        while True:
            self._check("a text")
            text.append(sampler.sample(logits[0], len(prompt) + len(text)))
            if len(text) == n_tokens or is_end(text[-1]):
                return text
            logits = self._target.decode(text[-1:])

    def score(
        self, prompt: Sequence[int], text: Sequence[int], n_threads: int, translation: Translation | None = None
    ) -> tuple[list[tuple[float, bool]], float]:
        """The (confidence, accepted) of the draft's prediction of each token of `text`, and its tokens for each.

        `text` is what the target writes after `prompt`. The scores end before a token that the draft does not have.
        `translation`: of a draft with another vocabulary.
        """
        assert self._draft is not None
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
                self._check("the draft's acceptance rate")
                if not drafter.step():
                    return scores, 1.0
                n_asked += 1
            scores.append(reader.accept(right))
        return scores, 1.0 if translator is None else translator.ratio

    def _measure(self, groups: Sequence[Group]) -> None:
        """Time all groups in rounds, until their times are reliable or the limit is reached."""
        try:
            n_rounds, self._since = 0, cpu_times()
            while pending := [group for group in groups if n_rounds < ROUNDS or not group.is_settled]:
                for group in pending:
                    self._check(str(group))
                    self._run(group, groups, again=n_rounds >= ROUNDS)
                self._stop.wait(max(0.0, _WINDOW_S - (cpu_times().now - self._since.now)))
                self._judge(groups)
                n_rounds += 1
        except MeasurementError:
            self.doubts = self._reason
            self._note(f"tentative: {self.doubts}")
            for series in (series for group in groups for series in group.series):
                series.judge(disturbed=True)

    def _run(self, group: Group, groups: Sequence[Group], *, again: bool) -> None:
        """Add times to a group: to all of its series or, `again`, to those of the target that need more."""
        n_target, n_draft = group.threads
        if n_draft:
            assert self._draft is not None
            self._prepare(self._draft, n_draft)
        if not n_target:
            for _ in range(_DRAFTS):
                self._time_draft(group)
            self._judge(groups)
            return
        self._prepare(self._target, n_target)
        with self._drafting(group) if n_draft else nullcontext():
            for n in [n for n, series in group.target.items() if not (again and series.is_settled)] or [*group.target]:
                self._repeat(n, group.target[n])
                self._judge(groups)

    def _repeat(self, n: int, series: Series) -> None:
        """Time batches of `n` tokens of the target, at least one."""
        tokens, end = list(range(200, 200 + n)), time.perf_counter() + _ROUND_S
        while True:
            series.pending.append(self._seconds(self._target, lambda: self._target.decode(tokens, n)))
            if time.perf_counter() >= end:
                return

    @contextmanager
    def _drafting(self, group: Group) -> Iterator[None]:
        """Time the draft concurrently, on a thread of its own. Raises at the end what that has raised."""
        done = threading.Event()

        def draft() -> None:
            while not done.is_set():
                self._time_draft(group)

        with ThreadPoolExecutor(1, "duo-draft") as thread:
            drafting = thread.submit(draft)
            try:
                yield
            finally:
                done.set()
        drafting.result()

    def _time_draft(self, group: Group) -> None:
        draft = self._draft
        assert draft is not None
        branches = range(1, group.n_sequences)
        for sequence in branches:
            draft.branch(sequence, draft.n_past)
        if branches:
            each = [(sequence, 200 + sequence) for sequence in range(group.n_sequences)]
            seconds = self._seconds(draft, lambda: draft.decode_each(each))
        else:
            tokens = list(range(200, 200 + group.n_tokens))
            seconds = self._seconds(draft, lambda: draft.decode(tokens))
        group.draft.pending.append(seconds)
        for sequence in branches:
            draft.drop(sequence)

    def _prepare(self, decoder: Decoder, n_threads: int) -> None:
        """Let `decoder` hold the tokens after which decodes are timed."""
        decoder.set_threads(n_threads, n_threads)
        decoder.rollback(0)
        decode_all(decoder, _PROMPT)

    def _seconds(
        self, decoder: Decoder, decode: Callable[[], object], clock: Callable[[], float] | None = None
    ) -> float:
        """The time of one call that decodes something."""
        self._check()
        if time.perf_counter() > self._end:
            raise self._failure()
        clock = clock or time.perf_counter
        start = clock()
        decode()
        seconds = clock() - start
        return_to(decoder, _PROMPT)
        return seconds

    def _judge(self, groups: Sequence[Group]) -> None:
        """Keep the times since the last call if nothing has disturbed them.

        Does nothing within _WINDOW_S of the last call.
        """
        if cpu_times().now - self._since.now < _WINDOW_S:
            return
        self._n_others = other_cpu_use(self._since)
        for series in (series for group in groups for series in group.series):
            series.judge(disturbed=self._is_disturbed)
        if self._is_disturbed and not self._told:
            self._told = True
            self._note(f"{self._reason}: measuring again, for up to {self._end - time.perf_counter():.0f} s")
        self._since = cpu_times()

    @property
    def _is_disturbed(self) -> bool:
        return is_busy(self._n_others, self._n_threads)

    @property
    def _reason(self) -> str:
        """Why there are no reliable times."""
        if self._is_disturbed:
            return f"other programs use {self._n_others:.1f} of {usable_cores()} cores"
        return "the times vary too much"

    def _failure(self) -> MeasurementError:
        return MeasurementError(f"the machine cannot be measured now: {self._reason}; try again when it is idle")

    def _check(self, what: str = "") -> None:
        """Show the progress; raise Stopped."""
        if self._stop.is_set():
            raise Stopped
        if what:
            self._progress(what, min(1.0, (time.perf_counter() - self._begin) / self._expected_s))


def _group(threads: tuple[int, int], sizes: Sequence[int]) -> Group:
    return Group(threads, {n: Series() for n in sizes})


def _guessed(n: int) -> float:
    """The time of a batch of `n` tokens, relative to one."""
    return 1 + 0.3 * (n - 1)


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
