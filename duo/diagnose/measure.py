"""Measures a pair on this machine: what decodes cost, the texts of the target, and how often the draft is right."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from duo.diagnose.prospects import Measurements, Scores, Times
from duo.engine.async_draft import CandidateQueue
from duo.engine.block_drafter import BlockDrafter
from duo.engine.cores import ON_CPU, CpuTimes, cpu_times, is_busy, other_cpu_use, usable_cores
from duo.engine.decoder import Decoder, decode_all, return_to
from duo.engine.drafter import Drafter
from duo.engine.head_drafter import HeadDrafter
from duo.engine.model_pair import ModelPair
from duo.engine.recorder import Recorder
from duo.engine.translated import TranslatedTarget, Translation
from duo.errors import DuoError, ModelError
from duo.llama.block import BlockContext
from duo.llama.heads import HeadContext
from duo.llama.hidden_rows import N_ROWS
from duo.llama.model import Model
from duo.speculation.acceptance import N_DEPTHS
from duo.speculation.sampling import Greedy
from duo.speculation.sequence import TokenSequence

SIZES = tuple(range(1, 18))  # of batches: up to sixteen candidates and the token before them
_FEW_SIZES = (1, 2, 3, 4, 5, 8, 12, 17)  # that are timed if a decode is slow
_SLOW_S = 0.25  # for the largest batch
_ROUNDS = 3  # of all measurements, at least: the speed of a machine changes within seconds
_ROUND_S = 0.033  # for the times of one size, in each round
_ERROR = 0.1  # largest standard error of a median, relative to it
_WINDOW_S = 0.5  # within which the processor time of other programs is compared
_SLOWER = 1.3  # most decodes are concurrent
_TEXT_SLOWER = 1.5  # a text takes the target, and the draft
_PATIENCE_S, _PATIENCE = 20.0, 2.5  # the limit: seconds, and more for each that is expected
_PROMPT = list(range(100, 132))  # the tokens in the cache while a decode is timed
_VARYING = "the times vary too much"
_MAX_ASKED = 16  # tokens of a draft with another vocabulary that predict nothing: then it has no prediction

Text = tuple[Sequence[int], Sequence[int]]  # a prompt, and what the target writes after it
Progress = Callable[[str, float], object]  # called with what is measured, and the share that is done


class Interrupted(Exception):
    """Measuring was interrupted."""


class MeasurementError(DuoError):
    """No reliable times could be measured."""


def check_measurable(draft: Model) -> None:
    """Raise ModelError for a draft that cannot decode without its target."""
    if draft.shares_cache:
        why = "it reads the target's cache, so it cannot be measured by itself: a run learns whether it pays"
        raise ModelError(f"{draft.path.name}: {why}")


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
        if len(self.times) < _ROUNDS:
            return False
        low, middle = np.percentile(self.times, (25, 50))  # what disturbs makes only the others longer
        return bool(2 * (middle - low) / math.sqrt(len(self.times)) <= _ERROR * middle)


@dataclass(slots=True, eq=False)
class Group:
    """Decodes that are timed together: of the target, or of the draft alone; or of both, the draft's concurrently."""

    threads: tuple[int, int]  # of target and draft; 0: it does not run
    sizes: Sequence[int]  # tokens in the batches
    series: dict[int, Series] = field(init=False)  # by tokens in the batch; 0: of the concurrent draft

    def __post_init__(self) -> None:
        self.series = {n: Series() for n in ([0, *self.sizes] if all(self.threads) else self.sizes)}

    def __str__(self) -> str:
        named = zip(("target", "draft"), self.threads, strict=True)
        return " and ".join(f"the {name} on {n} thread{'s' * (n > 1)}" for name, n in named if n)

    @property
    def unsettled(self) -> list[int]:
        """What needs more times."""
        return [n for n, series in self.series.items() if not series.is_settled]

    @property
    def times(self) -> Times:
        """The medians of `series`; empty if the smallest batch or the concurrent draft has no times."""
        found = {n: series.seconds for n, series in self.series.items() if series.seconds}
        return found if {0, min(self.sizes)} & self.series.keys() <= found.keys() else {}


class Meter:
    """Measures a target and a draft, if there is one, on the calling thread. Raises Interrupted once `stop` is set.

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
        self._sizes: Sequence[int] = SIZES
        self._begin = time.perf_counter()
        self._expected_s = self._end = math.inf
        self._n_threads = 1  # the most that compute
        self._busy, self._told = "", False  # what other programs do that disturbs; whether `note` has got it

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
        group_s = sum(_ROUNDS * max(_ROUND_S, seconds[n]) for n in self._sizes)
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
        block = self._draft.block.n_most if isinstance(self._draft, BlockContext) else 0
        drafts = [Group((0, n), [n for n in _FEW_SIZES if n <= block] or (1, 2)) for n in draft_threads]
        both = [Group(split, concurrent_sizes or self._sizes) for split in splits]
        self._measure([*alone, *drafts, *both])
        for groups in (alone, drafts, both):
            if groups and not any(group.times for group in groups):
                raise self._failure()
        concurrent = {group.threads: group.times for group in both if group.times}
        return Measurements(
            {group.threads[0]: group.times for group in alone if group.times},
            {group.threads[1]: group.times for group in drafts if group.times},
            {split: (times, times.pop(0)) for split, times in concurrent.items()},
            doubts=self.doubts,
        )

    def score(
        self, prompt: Sequence[int], text: Sequence[int], n_threads: int, translation: Translation | None = None
    ) -> tuple[Scores, float]:
        """The scores of the draft's predictions of each token of `text`, and its tokens for each.

        The target writes `text` after `prompt`. The scores end before a token that the draft does not have.
        """
        assert self._draft is not None
        self._draft.set_threads(n_threads, n_threads)
        self._draft.rollback(0)
        sequence, metrics, translator = TokenSequence(prompt, self._target.n_vocab), Recorder(), None
        queue = CandidateQueue(sequence, metrics)
        if translation is not None:
            _, translator = translation.begin(prompt)
            side = TranslatedTarget(queue, translator, metrics)
            drafter = Drafter(self._draft, side, translation.sampler(ends=True), self._draft.n_vocab, metrics)
        elif isinstance(self._draft, HeadContext):  # it reads what the target's context holds
            self._draft.rows.n_kept = N_ROWS + len(text)
            self._target.rollback(0)
            decode_all(self._target, [*prompt, *text])
            kind = BlockDrafter if isinstance(self._draft, BlockContext) else HeadDrafter
            drafter = kind(self._draft, queue, Greedy(), self._target.n_vocab, metrics)
            if isinstance(drafter, BlockDrafter):
                drafter.n_block = N_DEPTHS
        else:
            drafter = Drafter(self._draft, queue, Greedy(), self._target.n_vocab, metrics)
        scores: Scores = []
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
        n_rounds = 0
        try:
            while pending := [group for group in groups if n_rounds < _ROUNDS or group.unsettled]:
                for group in pending:
                    self._check(str(group))
                    missing = group.unsettled if n_rounds >= _ROUNDS else []
                    self._time(group, [n for n in missing if n] or group.sizes)
                n_rounds += 1
        except MeasurementError:
            self.doubts = self._busy or _VARYING
            self._note(f"tentative: {self.doubts}")

    def _time(self, group: Group, sizes: Sequence[int]) -> None:
        """Add times to a group, which are disturbed if other programs compute meanwhile."""
        both = zip((self._target, self._draft), group.threads, strict=True)
        running = [(decoder, n_threads) for decoder, n_threads in both if decoder is not None and n_threads]
        for decoder, n_threads in running:
            self._prepare(decoder, n_threads)
        (timed, _), *concurrent = running
        found: list[tuple[int, float]] = []
        since, end = cpu_times(), time.perf_counter() + _WINDOW_S

        def add(n: int, decoder: Decoder, decode: Callable[[], object], for_s: float = 0.0) -> None:
            until = time.perf_counter() + for_s
            while True:
                found.append((n, self._seconds(decoder, decode, time.perf_counter)))
                if time.perf_counter() >= until:
                    break

        try:
            with self._drafting(concurrent[0][0], add) if concurrent else nullcontext():
                while time.perf_counter() < end:
                    for n in sizes:
                        tokens = list(range(200, 200 + n))
                        add(n, timed, lambda: timed.decode(tokens, len(tokens)), _ROUND_S)  # noqa: B023
        finally:
            is_disturbed = self._is_disturbed(since)
            for n, seconds in found:
                series = group.series[n]
                (series.disturbed if is_disturbed else series.times).append(seconds)

    @contextmanager
    def _drafting(self, draft: Decoder, add: Callable[..., None]) -> Iterator[None]:
        """Time the draft concurrently, on a thread of its own. Raises at the end what that has raised."""
        done = threading.Event()

        def work() -> None:
            while not done.is_set():
                add(0, draft, lambda: draft.decode([200]))

        with ThreadPoolExecutor(1, "duo-draft") as thread:
            drafting = thread.submit(work)
            try:
                yield
            finally:
                done.set()
        drafting.result()

    def _prepare(self, decoder: Decoder, n_threads: int) -> None:
        """Put the tokens after which decodes are timed into the cache."""
        decoder.set_threads(n_threads, n_threads)
        decoder.rollback(0)
        decode_all(decoder, _PROMPT)

    def _seconds(self, decoder: Decoder, decode: Callable[[], object], clock: Callable[[], float]) -> float:
        """The seconds of one decode."""
        self._check()
        if time.perf_counter() > self._end:
            raise self._failure()
        start = clock()
        decode()
        seconds = clock() - start
        return_to(decoder, _PROMPT)
        return seconds

    def _is_disturbed(self, since: CpuTimes) -> bool:
        """Whether other programs have computed since then; says so once."""
        n_others = other_cpu_use(since)
        is_disturbed = is_busy(n_others, self._n_threads)
        self._busy = f"other programs use {n_others:.1f} of {usable_cores()} cores" if is_disturbed else ""
        if is_disturbed and not self._told:
            self._told = True
            left_s = max(1.0, self._end - time.perf_counter())
            self._note(f"{self._busy}: measuring again, for up to {left_s:.0f} s; if they go on, nothing is saved")
        return is_disturbed

    def _failure(self) -> MeasurementError:
        reason = self._busy or _VARYING
        return MeasurementError(f"the machine cannot be measured now: {reason}; try again when it is idle")

    def _check(self, what: str = "") -> None:
        """Show the progress. Raises Interrupted."""
        if self._stop.is_set():
            raise Interrupted
        if what:
            self._progress(what, min(1.0, (time.perf_counter() - self._begin) / self._expected_s))


def measure_pair(
    pair: ModelPair, meter: Meter, texts: Sequence[Text], alone: dict[int, Times] | Sequence[int],
    draft_threads: Sequence[int], splits: Sequence[tuple[int, int]], concurrent_sizes: Sequence[int] = (),
) -> Measurements:  # fmt: skip
    """Measure a pair that has a draft: Meter.measure(), and the scores of the texts.

    `alone`: the numbers of threads of the target, or its times if they are known.
    """
    found = meter.measure(() if isinstance(alone, dict) else alone, draft_threads, splits, concurrent_sizes)
    found.target = alone if isinstance(alone, dict) else found.target
    assert pair.estimates is not None
    estimates, alone_times = pair.estimates, pair.estimates.costs.alone
    found.n_depths, found.schedules, found.block = estimates.n_depths, estimates.schedules, estimates.block
    found.aborts = estimates.aborts
    if not found.doubts:
        found.branches = {n: time.value / alone_times.token_s for n, time in alone_times.by_sequences.items()}
    found.add_scores([meter.score(*text, found.fastest_draft, pair.translation) for text in texts])
    return found
