"""Measures a target: the cost of its decodes, and texts that it writes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

from duo.diagnose.timing import ROUNDS, Group, MeasurementError, Series, doubt, target_group
from duo.engine.cores import usable_cores
from duo.engine.decoder import Decoder, decode_all, return_to
from duo.engine.free_cores import cpu_times, is_busy, other_cpu_use
from duo.spec.sampling import Greedy

SIZES = tuple(range(1, 18))  # of batches: up to sixteen candidates and the token before them
_FEW_SIZES = (1, 2, 3, 4, 5, 8, 12, 17)  # that are timed if a decode is slow
_SLOW_S = 0.25  # for the largest batch
_LEAST_S = 0.1  # for the times of one size
_WINDOW_S = 0.5  # within which the processor time of other programs is compared
_SHORT_S = 0.2  # the shortest time of which that is accurate
_N_FIRST = 3  # decodes from which the duration is estimated
_SLOWER = 1.3  # of which most are concurrent
_TEXT_SLOWER = 1.5  # a text takes the target, and the draft
_PATIENCE_S, _PATIENCE = 20.0, 2.5  # the limit: seconds, and more for each that is expected,
_RESERVED = 2.0  # of which as many are left to measure beside other programs
_PROMPT = list(range(100, 132))  # the tokens in the cache while a decode is timed

Progress = Callable[[str, float], None]  # called with what is measured, and the share that is done


class Stopped(Exception):
    """Measuring was cancelled."""


class TargetMeter:
    """Measures one target, on the calling thread. Raises Stopped soon after `stop` is set.

    Times that other programs have disturbed are not used: it waits for them, and measures again. If there are no
    reliable times before the limit that announce() has set, it uses the others, and `doubts` says why. It raises
    MeasurementError if there are none at all.
    """

    def __init__(
        self,
        target: Decoder,
        progress: Progress,
        stop: threading.Event,
        n_jobs: int = 1,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """The context must have room for 64 tokens and 32 rows of logits. `n_jobs`: how many times will be measured.

        `note` gets a line for people when the machine is busy.
        """
        self.doubts = ""  # why the times are not reliable; empty: they are
        self._target = target
        self._progress = progress
        self._stop = stop
        self._n_jobs = n_jobs
        self._n_done = 0.0
        self._note = note
        self._sizes: Sequence[int] = SIZES
        self._end = self._wait_end = math.inf
        self._n_threads = 1  # the most that compute
        self._n_others = 0.0  # processors that other programs used
        self._since = cpu_times()
        self._groups: Sequence[Group] = ()  # that are measured now

    def announce(self, n_threads: int, n_groups: float, n_tokens: int, *, on_cpu: bool) -> tuple[float, float]:
        """Seconds that timing will take, and the limit to which it is held from now on.

        `n_threads`: the most that are used. `n_groups`: of numbers of threads that are timed. `n_tokens`: of the texts.
        `on_cpu`: the times of a busy machine are told from the processor time of one thread.
        """
        self._n_threads = n_threads
        self._prepare(self._target, 1 if on_cpu else n_threads)
        clock = time.process_time if on_cpu else time.perf_counter
        seconds = []
        for _ in range(_N_FIRST):
            start = clock()
            self._target.decode([200])
            seconds.append(clock() - start)
            return_to(self._target, _PROMPT)
        one_s = min(seconds)
        self._sizes = SIZES if one_s * _guessed(SIZES[-1]) < _SLOW_S * n_threads else _FEW_SIZES
        times = [max(_LEAST_S, ROUNDS * one_s * _guessed(n) / n_threads) for n in self._sizes]
        expected_s = _SLOWER * n_groups * sum(times) + _TEXT_SLOWER * n_tokens * one_s / n_threads
        limit_s = _PATIENCE_S + _PATIENCE * expected_s
        self._end = time.perf_counter() + limit_s
        self._wait_end = self._end - _RESERVED * expected_s
        return expected_s, limit_s

    def target_times(self, n_threads: int) -> list[float]:
        """The time of a batch of each of SIZES."""
        return self._settled(target_group(n_threads, self._sizes)).curve(SIZES)

    def _settled(self, group: Group) -> Group:
        """The group, measured. Raises MeasurementError if any of its times is unknown."""
        self._settle([group])
        if not all(series.is_known for series in group.series):
            raise MeasurementError(f"the machine cannot be measured now: {self._reason}; try again when it is idle")
        return group

    def _settle(self, groups: Sequence[Group]) -> None:
        """Measure all groups in rounds, until the times are reliable."""
        try:
            self._measure_all(groups)
        except MeasurementError:
            self.doubts = self._reason
            for series in (series for group in groups for series in group.series):
                series.judge(disturbed=True)

    def _measure_all(self, groups: Sequence[Group]) -> None:
        """The same. Raises MeasurementError if that is impossible."""
        self._n_threads = max(self._n_threads, *(sum(group.threads) for group in groups))
        self._groups, self._since = groups, cpu_times()
        n_rounds = 0
        while pending := [group for group in groups if n_rounds < ROUNDS or not group.is_settled]:
            for group in pending:
                self._run(group, again=n_rounds >= ROUNDS)
                self._judge()
            self._stop.wait(max(0.0, _SHORT_S - (cpu_times().now - self._since.now)))
            self._judge(0.0)
            n_rounds += 1
            if n_rounds >= ROUNDS and self._is_disturbed and time.perf_counter() >= self._wait_end:
                raise MeasurementError(self._reason)
            if n_rounds >= ROUNDS and all(group.is_settled for group in groups):
                doubt(groups)

    def _run(self, group: Group, *, again: bool) -> None:
        """Add times to a group: to all of its series or, `again`, to those that need more."""
        self._prepare(self._target, group.threads[0])
        for n, series in group.target.items():
            if not again or not series.is_settled:
                self._begin(series.what, 0.0 if again else 1 / ROUNDS)
                self._repeat(self._target, n, series, _LEAST_S / ROUNDS)
                self._judge()

    def _prepare(self, decoder: Decoder, n_threads: int) -> None:
        """Let `decoder` hold the tokens after which decodes are timed."""
        decoder.set_threads(n_threads, n_threads)
        decoder.rollback(0)
        decode_all(decoder, _PROMPT)

    def _repeat(self, decoder: Decoder, n: int, series: Series, seconds: float) -> None:
        """Time a batch of `n` tokens after the same prompt, for `seconds` and at least once."""
        end = time.perf_counter() + seconds
        while True:
            self._time(decoder, n, series)
            if time.perf_counter() >= end:
                return

    def _time(self, decoder: Decoder, n: int, series: Series) -> None:
        """Time one batch."""
        self._time_call(decoder, lambda: decoder.decode(list(range(200, 200 + n)), n), series)

    def _time_call(self, decoder: Decoder, decode: Callable[[], object], series: Series) -> None:
        """Time one call that decodes something."""
        self._check()
        start = time.perf_counter()
        decode()
        series.pending.append(time.perf_counter() - start)
        return_to(decoder, _PROMPT)

    def _judge(self, least_s: float = _WINDOW_S) -> None:
        """Keep the times since the last call if nothing has disturbed them; wait while other programs compute.

        Does nothing within `least_s` seconds of the last call.
        """
        if cpu_times().now - self._since.now < least_s:
            return
        self._n_others = other_cpu_use(self._since)
        for group in self._groups:
            for series in group.series:
                series.judge(disturbed=self._is_disturbed)
        if self._is_disturbed:
            self._wait()
        self._since = cpu_times()

    def _wait(self) -> None:
        """Wait until other programs no longer compute."""
        if (wait_s := self._wait_end - time.perf_counter()) > 0:
            self._note(f"{self._reason}: waiting for up to {wait_s:.0f} s, and measuring again")
            self._note = lambda _: None  # once is enough
        while self._is_disturbed and time.perf_counter() < self._wait_end:
            self._check()
            since = cpu_times()
            self._stop.wait(_WINDOW_S)
            self._n_others = other_cpu_use(since)

    @property
    def _is_disturbed(self) -> bool:
        return is_busy(self._n_others, self._n_threads)

    @property
    def _reason(self) -> str:
        """Why there are no reliable times."""
        if self._is_disturbed:
            return f"other programs use {self._n_others:.1f} of {usable_cores()} cores"
        return "the times vary too much"

    def _begin(self, what: str, share: float = 1.0) -> None:
        """`share`: of a job that is begun."""
        self._check()
        self._progress(what, min(1.0, self._n_done / self._n_jobs))
        self._n_done += share

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped
        if time.perf_counter() > self._end:
            raise MeasurementError(f"the machine cannot be measured now: {self._reason}; try again when it is idle")

    def write(
        self, prompt: Sequence[int], n_tokens: int, n_threads: int, is_end: Callable[[int], bool] = lambda _: False
    ) -> list[int]:
        """The tokens that the target writes after `prompt`: `n_tokens`, or fewer if it ends the text before."""
        self._target.set_threads(n_threads, n_threads)
        self._target.rollback(0)
        sampler, text = Greedy(), list[int]()
        logits = decode_all(self._target, prompt)
        while True:
            self._check()
            text.append(sampler.sample(logits[0], len(prompt) + len(text)))
            if len(text) == n_tokens or is_end(text[-1]):
                return text
            logits = self._target.decode(text[-1:])


def _guessed(n: int) -> float:
    """The time of a batch of `n` tokens, relative to one."""
    return 1 + 0.3 * (n - 1)
