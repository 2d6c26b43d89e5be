"""Emulated: a context whose decodes take as long as on other hardware, for benchmarks of the engine."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from duo.engine.decoder import Alternating, Decoder
from duo.errors import DecodeAborted, DecodeError
from duo.speculation.types import Logits

_DONE = 1e-9  # of a decode, that may be left at its end: rounding
# Share of the emulated time by which decodes may exceed it: if many do, and if few do, because of other programs.
_MAX_LATE, _MAX_STALLED = 0.01, 0.05
_FEW = 0.02  # of the decodes; at least one


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """What decodes cost on an emulated device, in seconds.

    `alone_s[i]` is for a target's batch of i+1 tokens; larger ones, such as those of a prefill, are not emulated. With
    `read_s` it is for a draft's token in each of i+1 sequences, and each further token of a batch takes `read_s`.
    """

    alone_s: tuple[float, ...]
    concurrent_s: tuple[float, ...]  # while the other device computes
    read_s: float | None = None  # None: a target
    noise: float = 0.0  # standard deviation of the logarithm of a time
    aborts: bool = True  # whether a decode can be aborted; otherwise only the end of a text ends it early
    round_trip_s: float = 0.0  # of a draft on another machine, once for each of its turns


@dataclass(slots=True, eq=False)
class _Work:
    """A decode in progress; `left` of it, from 1 to 0, and less if its real computation takes longer."""

    alone_s: float
    concurrent_s: float
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
        self.advance()
        self._running.remove(work)
        self.changed.notify_all()

    def seconds(self, work: _Work) -> float:
        """Of the whole decode, as long as nothing else begins or ends."""
        return work.concurrent_s if len(self._running) > 1 else work.alone_s

    def advance(self) -> None:
        """Bring all decodes up to date."""
        now = time.perf_counter()
        for work in self._running:
            work.left -= (now - work.since) / self.seconds(work)
            work.since = now


@dataclass(slots=True)
class Account:
    slow_down: float
    on_step: Callable[[], None] = lambda: None  # called at the end of each decode of the target
    times: list[tuple[float, float]] = field(default_factory=list)  # real and emulated seconds of each decode

    def add(self, real_s: float, emulated_s: float) -> None:
        self.times.append((real_s, emulated_s))

    def close(self) -> None:
        """The text has ended: begin anew. Raises DecodeError if decodes took longer than the emulated ones."""
        times, self.times = self.times, []
        late_s = [real - emulated for real, emulated in times if real > emulated]
        n_late, share = len(late_s), sum(late_s) / sum(emulated for _, emulated in times) if late_s else 0.0
        if share > (_MAX_LATE if n_late > max(1, _FEW * len(times)) else _MAX_STALLED):
            ratios = sorted(real / emulated for real, emulated in times)
            needed = math.ceil(10 * self.slow_down * ratios[int(0.99 * len(times))]) / 10
            raise DecodeError(
                f"{n_late} of {len(times)} decodes took longer than on the emulated devices, by {100 * share:.0f} % of "
                f"their time: slow these down by a factor of {needed:g} or more, not {self.slow_down:g}"
            )


class Wrapped:
    """A Decoder that passes everything on to another one."""

    def __init__(self, context: Decoder) -> None:
        self.context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)


class Emulated(Wrapped):
    """Decodes for real, then waits until the emulated device would have finished: see Decoder.

    The prompt is read at real speed: prefill is not emulated. A decode that is aborted in its wait is rolled back, but
    not its branches, which then have one more token: if one of them comes true, the drafter decodes that token again.
    `devices` are shared with the model that slows this one down; `seed` is that of the noise.
    """

    def __init__(
        self, context: Decoder, times: DeviceTimes, account: Account, devices: Devices | None = None, seed: int = 1
    ) -> None:
        super().__init__(context)
        self._times, self._account, self._dice = times, account, random.Random(seed)
        self._devices = devices or Devices()
        self._aborted = self._interrupted = False
        self._is_far = False  # whether the round trip to it is still to come in this turn

    def decode(self, tokens: Sequence[int], n_rows: int = 1) -> Logits:
        n, read_s = len(tokens), self._times.read_s
        if not self.n_past and n > 1:
            return self.context.decode(tokens, n_rows)
        if read_s is not None:
            return self._timed(lambda: self.context.decode(tokens, n_rows), 1, (n - 1) * read_s)
        logits = self._timed(lambda: self.context.decode(tokens, n_rows), n)
        self._account.on_step()
        return logits

    def decode_with(self, tokens: Sequence[int], alternatives: Sequence[tuple[int, int]]) -> Logits:
        context = cast("Alternating", self.context)
        try:
            logits = self._timed(lambda: context.decode_with(tokens, alternatives), len(tokens) + len(alternatives))
        except DecodeAborted:
            context.settle(self.n_past)
            raise
        self._account.on_step()
        return logits

    def decode_each(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        return self._timed(lambda: self.context.decode_each(tokens), min(len(tokens), len(self._times.alone_s)))

    def _timed(self, compute: Callable[[], Logits], n: int, more_s: float = 0.0) -> Logits:
        if n > len(self._times.alone_s):  # prefill
            return compute()
        times, n_past, devices = self._times, self.n_past, self._devices
        noise = self._dice.gauss(-(times.noise**2) / 2, times.noise)  # its exponential is 1 on average
        factor = self._account.slow_down * math.exp(noise)
        start = time.perf_counter()
        work = _Work(factor * (times.alone_s[n - 1] + more_s), factor * (times.concurrent_s[n - 1] + more_s), start)
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
        self.context.set_threads(n_threads, n_threads_batch)
        if self._is_far:
            self._is_far = False
            end = time.perf_counter() + self._account.slow_down * self._times.round_trip_s
            with self._devices.changed:
                while not self._aborted and (left_s := end - time.perf_counter()) > 0:
                    self._devices.changed.wait(left_s)

    def cancel(self) -> None:
        """See Decoder. A device that cannot abort finishes the decode."""
        if self._times.aborts:
            self._interrupt()
            self.context.cancel()

    def abort(self) -> None:
        self._aborted = True
        self._interrupt()
        self.context.abort()

    def resume(self) -> None:
        self._aborted = False
        self.context.resume()

    def _interrupt(self) -> None:
        with self._devices.changed:
            self._interrupted = True
            self._devices.changed.notify_all()
