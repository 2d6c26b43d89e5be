"""Measures models on this machine: what decodes cost, the texts of a target, and how often a draft is right."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

from duo.diagnose.timing import ROUNDS, Group, Measurements, Series
from duo.engine.async_draft import CandidateQueue
from duo.engine.cores import ON_CPU, cpu_times, is_busy, other_cpu_use, usable_cores
from duo.engine.decoder import Decoder, decode_all, return_to
from duo.engine.drafter import Drafter
from duo.engine.head_drafter import HeadDrafter
from duo.engine.recorder import Recorder
from duo.engine.translated import TranslatedTarget, Translation
from duo.errors import DuoError, ModelError
from duo.llama.heads import HeadContext
from duo.llama.model import Model
from duo.speculation.sampling import Greedy
from duo.speculation.sequence import TokenSequence

SIZES = tuple(range(1, 18))  # of batches: up to sixteen candidates and the token before them
_FEW_SIZES = (1, 2, 3, 4, 5, 8, 12, 17)  # that are timed if a decode is slow
_SLOW_S = 0.25  # for the largest batch
_ROUND_S = 0.033  # for the times of one size, in each round
_BESIDE = (5,)  # tokens of the target beside a draft with branches: a typical batch
_WINDOW_S = 0.5  # within which the processor time of other programs is compared
_SLOWER = 1.3  # most decodes are concurrent
_TEXT_SLOWER = 1.5  # a text takes the target, and the draft
_PATIENCE_S, _PATIENCE = 20.0, 2.5  # the limit: seconds, and more for each that is expected
_PROMPT = list(range(100, 132))  # the tokens in the cache while a decode is timed
_VARYING = "the times vary too much"
_MAX_ASKED = 16  # tokens of a draft with another vocabulary that predict nothing: then it has no prediction

Progress = Callable[[str, float], object]  # called with what is measured, and the share that is done


class Stopped(Exception):
    """Measuring was cancelled."""


class MeasurementError(DuoError):
    """No reliable times could be measured."""


def check_measurable(draft: Model) -> None:
    """Raise ModelError for a draft that cannot decode without its target."""
    if draft.shares_cache:
        why = "it reads the target's cache, so it cannot be measured by itself: a run learns whether it pays"
        raise ModelError(f"{draft.path.name}: {why}")


class Meter:
    """Measures a target and a draft, if there is one, on the calling thread. Raises Stopped soon after `stop` is set.

    It measures again what other programs have disturbed. Without reliable times before the limit that announce() has
    set, it uses the others, and `doubts` says why; without any, it raises MeasurementError. The contexts must have room
    for 64 tokens and 32 rows of logits.
    """

    def __init__(
        self,
        target: Decoder,
        draft: Decoder | None,
        progress: Progress,
        stop: threading.Event,
        note: Callable[[str], None],  # gets a line for people when the machine is busy
    ) -> None:
        self.doubts = ""  # why the times are not reliable; empty: they are
        self._target, self._draft = target, draft
        if isinstance(draft, HeadContext):
            draft.follow(draft.n_ctx)  # all that the target decodes is accepted
        self._progress, self._stop, self._note = progress, stop, note
        self._told = False  # that other programs compute
        self._has_times = False  # so that what follows may take longer than the limit
        self._sizes: Sequence[int] = SIZES
        self._begin = time.perf_counter()
        self._expected_s = self._end = math.inf
        self._n_threads = 1  # the most that compute
        self._busy = ""  # what other programs do that disturbs
        self._since = cpu_times()  # the last judgement
        self._timed: list[tuple[Series, float]] = []  # since then

    def announce(self, n_threads: int, n_groups: float, n_tokens: int, places: frozenset[str]) -> tuple[int, int]:
        """Seconds that measuring will take, and the limit to which it is held from now on.

        `n_threads`: the most that are used. `n_groups`: of numbers of threads that are timed. `n_tokens`: of the texts.
        `places`: where the target is; on the CPU, busy or not, its times are told from those of one thread.
        """
        on_cpu, self._n_threads = places == ON_CPU, n_threads
        self._prepare(self._target, 1 if on_cpu else n_threads)
        clock = time.process_time if on_cpu else time.perf_counter
        one_s = min(self._seconds(self._target, lambda: self._target.decode([200]), clock) for _ in range(3))
        seconds = {n: one_s * (1 + 0.3 * (n - 1)) / n_threads for n in SIZES}
        self._sizes = SIZES if seconds[SIZES[-1]] < _SLOW_S else _FEW_SIZES
        group_s = sum(ROUNDS * max(_ROUND_S, seconds[n]) for n in self._sizes)
        self._expected_s = _SLOWER * n_groups * group_s + _TEXT_SLOWER * n_tokens * seconds[1]
        limit_s = _PATIENCE_S + _PATIENCE * self._expected_s
        self._begin = time.perf_counter()
        self._end = self._begin + limit_s
        return math.ceil(self._expected_s), math.ceil(limit_s)

    def measure(
        self, target_threads: Sequence[int], draft_threads: Sequence[int] = (),
        splits: Sequence[tuple[int, int]] = (), concurrent_sizes: Sequence[int] = (),
    ) -> Measurements:  # fmt: skip
        """All times for these numbers of threads; concurrent ones for these sizes (default: all).

        May leave out sizes. Raises MeasurementError if it has too little.
        """
        alone = [Group((n, 0), self._sizes) for n in target_threads]
        drafts = [Group((0, n), (1, 2)) for n in draft_threads]
        both = [Group(split, concurrent_sizes or self._sizes) for split in splits]
        self._measure([*alone, *drafts, *both])
        found = Measurements(
            {group.threads[0]: group.times for group in alone if group.times},
            {group.threads[1]: group.times for group in drafts if group.times},
            {group.threads: (group.times, group.concurrent.seconds) for group in both if group.times},
            doubts=self.doubts,
        )
        asked = ((alone, found.target), (drafts, found.draft), (both, found.concurrent))
        if any(groups and not times for groups, times in asked):
            raise self._failure()
        return found

    def branches(self, split: tuple[int, int], sizes: Sequence[int]) -> dict[int, float]:
        """The concurrent draft's time for one token in each of several sequences, by their number.

        `split`: threads of target and draft. `sizes`: the numbers, for which the draft's context must have room.
        """
        groups = [Group(split, _BESIDE, n_sequences=n) for n in sizes]
        self._measure(groups)
        return {group.n_sequences: group.concurrent.seconds for group in groups if group.concurrent.seconds}

    def write(
        self, prompt: Sequence[int], n_tokens: int, n_threads: int, is_end: Callable[[int], bool] = lambda _: False
    ) -> list[int]:
        """The tokens that the target writes after `prompt`: `n_tokens`, or fewer if it ends the text before."""
        self._target.set_threads(n_threads, n_threads)
        self._target.rollback(0)
        text: list[int] = []
        while not text or (len(text) < n_tokens and not is_end(text[-1])):
            self._check("a text")
            logits = decode_all(self._target, text[-1:] or prompt)
            text.append(int(logits[0].argmax()))
        return text

    def score(
        self, prompt: Sequence[int], text: Sequence[int], n_threads: int, translation: Translation | None = None
    ) -> tuple[list[tuple[float, bool]], float]:
        """The (confidence, accepted) of the draft's prediction of each token of `text`, and its tokens for each.

        The target writes `text` after `prompt`. The scores end before a token that the draft does not have.
        """
        assert self._draft is not None
        self._draft.set_threads(n_threads, n_threads)
        self._draft.rollback(0)
        sequence, metrics, translator = TokenSequence(prompt, self._target.n_vocab), Recorder(), None
        queue = CandidateQueue(sequence, metrics)
        if translation is None:
            kind: type[Drafter] = Drafter
            if isinstance(self._draft, HeadContext):  # it reads what the target's context holds
                kind = HeadDrafter
                self._target.rollback(0)
                decode_all(self._target, [*prompt, *text])
            drafter = kind(self._draft, queue, Greedy(), self._target.n_vocab, metrics)
        else:
            _, translator = translation.begin(prompt)
            side = TranslatedTarget(queue, translator, metrics)
            drafter = Drafter(self._draft, side, translation.sampler(ends=True), self._draft.n_vocab, metrics)
        scores: list[tuple[float, bool]] = []
        for right in text:
            for _ in range(_MAX_ASKED):
                if sequence.pending:
                    break
                self._check("the draft's acceptance rate")
                if not drafter.step():
                    return scores, 1.0
            candidate = sequence.pending[0] if sequence.pending else None
            scores.append((0.0, False) if candidate is None else (candidate.confidence, candidate.token == right))
            queue.commit([right], 0)
        return scores, 1.0 if translator is None else translator.ratio

    def _measure(self, groups: Sequence[Group]) -> None:
        """Time all groups in rounds, until their times are reliable or the limit is reached."""
        n_rounds, self._since = 0, cpu_times()
        try:
            while pending := [group for group in groups if n_rounds < ROUNDS or not group.is_settled]:
                for group in pending:
                    self._check(str(group))
                    self._run(group, again=n_rounds >= ROUNDS)
                self._stop.wait(max(0.0, _WINDOW_S - (cpu_times().now - self._since.now)))
                self._judge()
                n_rounds += 1
        except MeasurementError:
            self.doubts = self._busy or _VARYING
            self._note(f"tentative: {self.doubts}")
            self._keep(disturbed=True)
        self._has_times = True

    def _run(self, group: Group, *, again: bool) -> None:
        """Add times to a group: of all sizes or, `again`, of those that need more."""
        both = zip((self._target, self._draft), group.threads, strict=True)
        running = [(decoder, n_threads) for decoder, n_threads in both if decoder is not None and n_threads]
        for decoder, n_threads in running:
            self._prepare(decoder, n_threads)
        timed, *concurrent = (decoder for decoder, _ in running)
        with self._drafting(concurrent[0], group) if concurrent else nullcontext():
            for n in [n for n, series in group.timed.items() if not (again and series.is_settled)] or group.timed:
                tokens, end = list(range(200, 200 + n)), time.perf_counter() + _ROUND_S
                while True:
                    self._time(group.timed[n], timed, lambda: timed.decode(tokens, len(tokens)))  # noqa: B023
                    if time.perf_counter() >= end:
                        break
                self._judge()

    @contextmanager
    def _drafting(self, draft: Decoder, group: Group) -> Iterator[None]:
        """Time the draft concurrently, on a thread of its own. Raises at the end what that has raised."""
        done, others = threading.Event(), range(1, group.n_sequences)
        each = [(sequence, 200 + sequence) for sequence in range(group.n_sequences)]

        def work() -> None:
            while not done.is_set():
                for sequence in others:
                    draft.branch(sequence, draft.n_past)
                self._time(group.concurrent, draft, lambda: draft.decode_each(each))
                for sequence in others:
                    draft.drop(sequence)

        with ThreadPoolExecutor(1, "duo-draft") as thread:
            drafting = thread.submit(work)
            try:
                yield
            finally:
                done.set()
        drafting.result()

    def _prepare(self, decoder: Decoder, n_threads: int) -> None:
        """Let it hold the tokens after which decodes are timed."""
        decoder.set_threads(n_threads, n_threads)
        decoder.rollback(0)
        decode_all(decoder, _PROMPT)

    def _time(self, series: Series, decoder: Decoder, decode: Callable[[], object]) -> None:
        seconds = self._seconds(decoder, decode, time.perf_counter)
        self._timed.append((series, seconds))

    def _seconds(self, decoder: Decoder, decode: Callable[[], object], clock: Callable[[], float]) -> float:
        """The time of one call that decodes something."""
        self._check()
        if time.perf_counter() > self._end:
            raise self._failure()
        start = clock()
        decode()
        seconds = clock() - start
        return_to(decoder, _PROMPT)
        return seconds

    def _judge(self) -> None:
        """Keep the times since the last call, unless it is less than _WINDOW_S ago; say if others disturb them."""
        if cpu_times().now - self._since.now < _WINDOW_S:
            return
        n_others = other_cpu_use(self._since)
        is_disturbed = is_busy(n_others, self._n_threads)
        self._busy = f"other programs use {n_others:.1f} of {usable_cores()} cores" if is_disturbed else ""
        self._keep(disturbed=is_disturbed)
        if is_disturbed and not self._told:
            self._told = True
            left_s = self._end - time.perf_counter()
            self._note(f"{self._busy}: measuring again, for up to {left_s:.0f} s; if they go on, nothing is saved")
        self._since = cpu_times()

    def _keep(self, *, disturbed: bool) -> None:
        timed, self._timed = self._timed, []  # a concurrent draft may append meanwhile
        for series, seconds in timed:
            (series.disturbed if disturbed else series.times).append(seconds)

    def _failure(self) -> MeasurementError:
        reason = self._busy or _VARYING
        return MeasurementError(f"the machine cannot be measured now: {reason}; try again when it is idle")

    def _check(self, what: str = "") -> None:
        """Show the progress; raise Stopped, and MeasurementError at the limit if there are no times."""
        if self._stop.is_set():
            raise Stopped
        if not self._has_times and time.perf_counter() > self._end:
            raise self._failure()
        if what:
            self._progress(what, min(1.0, (time.perf_counter() - self._begin) / self._expected_s))
