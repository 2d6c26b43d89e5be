"""Emulated: a context whose decodes take as long as on other hardware, for benchmarks of the engine."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from duo.engine.decoder import Decoder
from duo.errors import DecodeAborted, DecodeError
from duo.spec.types import Logits

_DONE = 1e-9  # of a decode, that may be left at its end: rounding
# Share of the emulated time by which decodes may exceed it: if many do, and if few do, because of other programs.
_MOST_LATE, _MOST_STALLED = 0.01, 0.05
_FEW = 0.02  # of the decodes; at least one


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """What decodes cost on an emulated device, in seconds.

    `alone_s[i]` is for a target's batch of i+1 tokens; larger ones, such as those of a prefill, are not emulated. With
    `read_s` it is for a draft's token in each of i+1 sequences, and each further token of a batch takes `read_s`.
    """

    alone_s: tuple[float, ...]
    beside_s: tuple[float, ...]  # while the other device computes
    read_s: float | None = None  # None: a target
    noise: float = 0.0  # standard deviation of the logarithm of a time
    aborts: bool = True  # whether a decode can be aborted; otherwise only the end of a text ends it early
    round_trip_s: float = 0.0  # of a draft on another machine, once for each of its turns

    def slower(self, factor: float) -> DeviceTimes:
        """All times multiplied by `factor`."""
        return replace(
            self,
            alone_s=tuple(factor * each for each in self.alone_s),
            beside_s=tuple(factor * each for each in self.beside_s),
            read_s=None if self.read_s is None else factor * self.read_s,
            round_trip_s=factor * self.round_trip_s,
        )


@dataclass(slots=True, eq=False)
class _Work:
    """A decode in progress; `left` of it, from 1 to 0, and less if its real computation takes longer."""

    alone_s: float
    beside_s: float
    since: float
    left: float = 1.0


class Devices:
    """The decodes in progress on devices that slow each other down. The lock protects its fields and those of _Work."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self._running: list[_Work] = []

    def begin(self, work: _Work) -> None:
        """A decode begins. Called under the lock, like the others."""
        self.advance()
        self._running.append(work)
        self.changed.notify_all()

    def end(self, work: _Work) -> None:
        """A decode ends."""
        self.advance()
        self._running.remove(work)
        self.changed.notify_all()

    def seconds(self, work: _Work) -> float:
        """Of the whole decode, as long as nothing else begins or ends."""
        return work.beside_s if len(self._running) > 1 else work.alone_s

    def advance(self) -> None:
        """Bring all decodes up to date."""
        now = time.perf_counter()
        for work in self._running:
            work.left -= (now - work.since) / self.seconds(work)
            work.since = now


@dataclass(slots=True)
class Account:
    """What decodes of a pair really took, and what Python did between those of the target."""

    slow_down: float
    on_step: Callable[[], None] = lambda: None  # called at the end of each decode of the target
    times: list[tuple[float, float]] = field(default_factory=list)  # real and emulated seconds of each decode
    own_s: float = 0.0  # processor time of the target's thread between decodes of the target, without the draft's
    n_steps: int = 0
    draft_own_s: float = 0.0  # processor time of the draft's thread between its decodes
    n_drafted: int = 0
    _drafted: tuple[int, float] | None = None  # thread of the draft's last decode, and its processor time at the end
    _ended: tuple[int, float] | None = None  # thread of the target's last decode, and its processor time at the end

    def begin_step(self) -> None:
        """A decode of the target begins."""
        if self._ended is not None and self._ended[0] == threading.get_ident():
            self.own_s += time.thread_time() - self._ended[1]
            self.n_steps += 1

    def begin_draft(self) -> None:
        """A decode of the draft begins. What it does between two decodes on a thread of its own is counted."""
        thread = threading.get_ident()
        if self._drafted is not None and self._drafted[0] == thread and (not self._ended or self._ended[0] != thread):
            self.draft_own_s += time.thread_time() - self._drafted[1]
            self.n_drafted += 1

    def end_draft(self) -> None:
        """A decode of the draft has ended."""
        self._drafted = threading.get_ident(), time.thread_time()

    @property
    def draft_us(self) -> float | None:
        """Python's µs per decode of the draft on a thread of its own."""
        return 1e6 * self.draft_own_s / self.n_drafted if self.n_drafted else None

    def end_step(self) -> None:
        """A decode of the target has ended."""
        self.on_step()
        self._ended = threading.get_ident(), time.thread_time()

    def add(self, real_s: float, emulated_s: float) -> None:
        """A decode took `real_s`, and `emulated_s` on the emulated device."""
        self.times.append((real_s, emulated_s))

    def exclude(self, seconds: float) -> None:
        """The draft has decoded on the current thread, which took `seconds` of processor time."""
        if self._ended is not None and self._ended[0] == threading.get_ident():
            self._ended = self._ended[0], self._ended[1] + seconds

    def late(self, factor: float = 1.0) -> float:
        """Seconds that decodes took too long, over all emulated seconds, if these were `factor` times as long."""
        late_s = sum(max(0.0, real - factor * emulated) for real, emulated in self.times)
        return late_s / (factor * sum(emulated for _, emulated in self.times)) if late_s else 0.0

    def sufficient(self) -> float:
        """The slow-down with which these decodes would hardly have been late, rounded up to two digits."""
        low, high = 1.0, max(real / emulated for real, emulated in self.times)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.late(middle) > _MOST_LATE / 2 else (low, middle)
        digit = 10.0 ** (math.floor(math.log10(high * self.slow_down)) - 1)
        return float(f"{math.ceil(high * self.slow_down / digit - 1e-9) * digit:.2g}")

    def close(self) -> float | None:
        """The text has ended: begin anew. Returns Python's µs per step of the target; None without steps.

        Raises DecodeError if decodes took longer than the emulated ones.
        """
        late, own_us = self.late(), 1e6 * self.own_s / self.n_steps if self.n_steps else None
        n, n_late = len(self.times), sum(real > emulated for real, emulated in self.times)
        most = _MOST_LATE if n_late > max(1, _FEW * n) else _MOST_STALLED
        needed = self.sufficient() if late > most else 0.0
        self.reset()
        if needed:
            raise DecodeError(
                f"{n_late} of {n} decodes took longer than on the emulated devices, by {100 * late:.0f} % of "
                f"their time: slow these down by a factor of {needed:g} or more, not {self.slow_down:g}"
            )
        return own_us

    def reset(self) -> None:
        """Begin anew."""
        self.times, self.own_s, self.n_steps, self._ended = [], 0.0, 0, None
        self.draft_own_s, self.n_drafted, self._drafted = 0.0, 0, None


class Emulated:
    """Decodes for real, then waits until the emulated device would have finished: see Decoder.

    The prompt is read at real speed: prefill is not emulated. A decode that is aborted in its wait is rolled back, but
    not its branches, which then have one more token: if one of them comes true, the drafter decodes that token again.
    """

    def __init__(
        self, context: Decoder, times: DeviceTimes, account: Account, devices: Devices | None = None, seed: int = 1
    ) -> None:
        """All `times` are multiplied by the slow-down of `account`, which is that of target and draft.

        `devices`: shared with the model that slows this one down. Without `seed` (0) there is no noise.
        """
        self._context = context
        self._times = times.slower(account.slow_down)
        self._is_target = times.read_s is None
        self._account = account
        self._devices = devices or Devices()
        self._dice = random.Random(seed) if seed else None
        self._aborted = self._interrupted = False
        self._is_far = False  # whether the round trip to it is still to come in this turn
        self.n_ctx, self.n_vocab, self.n_rollback = context.n_ctx, context.n_vocab, context.n_rollback
        self.n_batch, self.n_branches = context.n_batch, context.n_branches
        self.rollback, self.branch = context.rollback, context.branch
        self.adopt, self.drop = context.adopt, context.drop

    @property
    def was_first(self) -> bool:
        """See Decoder."""
        return self._context.was_first

    @property
    def n_past(self) -> int:
        """See Decoder."""
        return self._context.n_past

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        """See Decoder."""
        n, read_s = len(tokens), self._times.read_s
        if not self.n_past and n > 1:
            return self._context.decode(tokens, n_rows)
        more_s = 0.0 if read_s is None else (n - 1) * read_s
        return self._timed(lambda: self._context.decode(tokens, n_rows), n if read_s is None else 1, more_s)

    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        """See Decoder."""
        return self._timed(lambda: self._context.decode_each(tokens), min(len(tokens), len(self._times.alone_s)))

    def _timed(self, compute: Callable[[], Logits], n: int, more_s: float = 0.0) -> Logits:
        if self._is_target:
            self._account.begin_step()
        else:
            self._account.begin_draft()
        began = time.thread_time()
        try:
            if n > len(self._times.alone_s):  # prefill
                return compute()
            factor, noise = 1.0, self._times.noise
            if self._dice is not None and noise:
                factor = math.exp(self._dice.gauss(-(noise**2) / 2, noise))  # 1 on average
            alone_s, beside_s = self._times.alone_s[n - 1] + more_s, self._times.beside_s[n - 1] + more_s
            return self._waiting(compute, _Work(factor * alone_s, factor * beside_s, time.perf_counter()))
        finally:
            if self._is_target:
                self._account.end_step()
            else:
                self._account.exclude(time.thread_time() - began)
                self._account.end_draft()

    def _waiting(self, compute: Callable[[], Logits], work: _Work) -> Logits:
        start, n_past, devices = work.since, self.n_past, self._devices
        with devices.changed:
            self._interrupted = self._aborted
            devices.begin(work)
        try:
            logits = compute()
            with devices.changed:
                devices.advance()
                real_s, late_s = work.since - start, max(0.0, -work.left) * devices.seconds(work)
                while work.left > _DONE and not self._interrupted:
                    devices.changed.wait(work.left * devices.seconds(work))
                    devices.advance()
                if self._interrupted:
                    self.rollback(n_past)
                    raise DecodeAborted("an emulated decode was aborted")
            self._account.add(real_s, work.since - start - late_s)
            return logits
        finally:
            with devices.changed:
                devices.end(work)

    def begin_turn(self) -> None:
        """The target has decoded: if this draft is on another machine, a round trip is due before its next decode."""
        self._is_far = self._times.round_trip_s > 0

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """See Decoder. It precedes each of the draft's turns: so here is the round trip, not in a token's time."""
        self._context.set_threads(n_threads, n_threads_batch)
        if self._is_far:
            self._is_far = False
            end = time.perf_counter() + self._times.round_trip_s
            with self._devices.changed:
                while not self._aborted and (left_s := end - time.perf_counter()) > 0:
                    self._devices.changed.wait(left_s)

    def cancel(self) -> None:
        """See Decoder. A device that cannot abort finishes the decode."""
        if self._times.aborts:
            self._interrupt()
            self._context.cancel()

    def abort(self) -> None:
        """See Decoder."""
        self._aborted = True
        self._interrupt()
        self._context.abort()

    def resume(self) -> None:
        """See Decoder."""
        self._aborted = False
        self._context.resume()

    def _interrupt(self) -> None:
        with self._devices.changed:
            self._interrupted = True
            self._devices.changed.notify_all()
