"""t_d: what a draft's decodes cost, learned while running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from duo.config import MAX_CANDIDATES, MAX_THREADS
from duo.speculation.constants import DEFAULT, Assumed, assumed
from duo.speculation.estimators import Time, TimesState, between, duration, restored_times, times_state
from duo.speculation.target_costs import AS_FAST, interpolated, with_inferred

# What is timed, with the smallest and the largest number: one token by threads; a batch; one token in each sequence, or
# of a block draft a block.
_RANGES = {"by_threads": (1, MAX_THREADS), "pair": (2, 2), "by_sequences": (2, MAX_CANDIDATES)}


class CostState(TypedDict):
    """What a profile keeps of DraftCosts."""

    times: dict[str, list[dict[str, TimesState]]]  # by the number of free cores, "0" for all: alone and concurrent
    read_s: float
    latency_s: float


class TokenTimes:
    """Seconds of a draft's decodes in one condition: alone, or concurrent with the target; on some free cores.

    What was not measured is inferred from the `relative`, the other condition; `doubt`: see BatchTimes.
    """

    relative: tuple[TokenTimes, Assumed]  # with how much slower a decode is here

    def __init__(self) -> None:
        self.all: dict[str, dict[int, Time]] = {name: {} for name in _RANGES}
        self.by_threads, self.pair, self.by_sequences = self.all.values()
        self.inferred_s = 0.0  # of one token, as inferred from other decodes, until it is measured

    @property
    def token_s(self) -> float:
        """t_d: seconds for one token on the fastest number of threads; 0 while unknown."""
        return self.seconds()

    def seconds(self, doubt: float = 0.0, n_sequences: int = 1) -> float:
        """Seconds for one token in each of `n_sequences`; for several, at least as long as for one."""
        return self.curve(n_sequences, doubt)[n_sequences - 1]

    def curve(self, n: int, doubt: float = 0.0) -> list[float]:
        """seconds() for 1 to at least `n` sequences."""
        other, slower = self.relative
        if self.by_threads:
            one_s = min(time.estimate(doubt) for time in self.by_threads.values())
        elif self.inferred_s or not (other.by_threads or other.inferred_s):
            one_s = self.inferred_s
        else:
            one_s = other.seconds(doubt) * assumed(slower, doubt)
        if n == 1 or not one_s:
            return n * [one_s]
        times = {1: one_s} | {n: max(one_s, time.estimate(doubt)) for n, time in self.repeated.items()}
        theirs = {n: time.value / other.token_s * one_s for n, time in other.repeated.items()}
        return interpolated(with_inferred(times, theirs), n)

    @property
    def repeated(self) -> dict[int, Time]:
        """Times for several sequences; single measurements only if there are no others.

        A GPU prepares each number of sequences when it is first used, and one that seems slow is not used again.
        """
        return {n: time for n, time in self.by_sequences.items() if time.n > 1 or time.is_kept} or self.by_sequences

    def pair_s(self, doubt: float = 0.0) -> float:
        """Seconds for a decode of two tokens; at least those for one."""
        one_s = self.seconds(doubt)
        return max(one_s, self.pair[2].estimate(doubt) if self.pair else assumed(DEFAULT.pair, doubt) * one_s)

    def add(self, seconds: float, n_threads: int = 1, n_sequences: int = 1) -> None:
        """The draft decoded one token in each of `n_sequences`."""
        times, key = (self.by_threads, n_threads) if n_sequences == 1 else (self.by_sequences, n_sequences)
        times.setdefault(key, Time()).add(seconds)

    def add_pair(self, seconds: float) -> None:
        """The draft decoded two tokens at once. A draft that is always right never decodes one token alone."""
        self.pair.setdefault(2, Time()).add(seconds)
        self.inferred_s = seconds / DEFAULT.pair[1]

    def state(self) -> dict[str, TimesState]:
        """What was measured, as JSON types."""
        return {name: times_state(times) for name, times in (self.all | {"by_sequences": self.repeated}).items()}

    def restore(self, state: Mapping[str, TimesState]) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        for name, times in self.all.items():
            times.clear()
            times.update(restored_times(state[name], *_RANGES[name]))


class DraftCosts:
    """The times of one draft, alone and concurrent, for each number of free cores (0: all), and of its prefill."""

    def __init__(self, *, is_apart: bool) -> None:
        """`is_apart`: the draft and the target share no device."""
        self._slower = AS_FAST if is_apart else DEFAULT.slower
        self._by_cores: dict[int, tuple[TokenTimes, TokenTimes]] = {}
        self._read = Time()  # per token of a long batch
        self._latency = Time()  # round trip to a remote draft, without the time to draft
        self.use_cores(0)

    def use_cores(self, n_cores: int) -> None:
        """From now on, times are learned and used for `n_cores` cores free for both models."""
        if n_cores not in self._by_cores:
            alone, both, factor = TokenTimes(), TokenTimes(), assumed(DEFAULT.slower, 0.0) if n_cores else 1.0
            alone.relative, both.relative = (both, AS_FAST), (alone, self._slower)
            # Until they are measured, times are as on other cores, or slower.
            for made, other in zip((alone, both), next(iter(self._by_cores.values()), ()), strict=False):
                for name, times in other.all.items():
                    made.all[name].update({n: time.inferred(factor) for n, time in times.items()})
            self._by_cores[n_cores] = alone, both
        self.alone, self.concurrent = self._by_cores[n_cores]

    @property
    def read_s(self) -> float:
        """Seconds per token when the draft decodes many at once; an estimate until that was measured."""
        return self._read.value or DEFAULT.read * self.alone.token_s

    @property
    def latency_s(self) -> float:
        """Round trip to a remote draft, in seconds, without the time to draft a token."""
        return self._latency.value

    def n_at_once(self, chances: Sequence[float]) -> int:
        """How many tokens to decode at once that the draft is likely to make next, each with the chance that it is.

        A wrong one costs what reading it takes, a right one saves a decode.
        """
        one_s, survival, saved_s = self.alone.token_s, 1.0, self.alone.token_s - self.alone.pair_s() + self.read_s
        most_s, found = 0.0, 0
        for n, chance in enumerate(chances, 1):
            survival *= chance
            saved_s += survival * one_s - self.read_s
            if saved_s > most_s:
                most_s, found = saved_s, n
        return found

    def add_read(self, n_tokens: int, seconds: float) -> None:
        """The draft decoded `n_tokens` at once, of which few say little."""
        if n_tokens >= DEFAULT.some:
            self._read.add(seconds / n_tokens)

    def add_latency(self, seconds: float) -> None:
        """A remote draft answered after `seconds`, not counting the time that it took to draft the token."""
        self._latency.add(max(seconds, 1e-6))

    def knows(self, n_threads: int, n_sequences: int = 1) -> bool:
        """Whether the time with `n_threads` is known, or in `n_sequences`, from this run or an earlier one."""
        if n_sequences == 1:
            return n_threads in self.alone.by_threads
        return n_sequences in {*self.alone.by_sequences, *self.concurrent.by_sequences}

    def replace(self, seconds: Mapping[int, float]) -> None:
        """The device takes `seconds` for a token in each of 1, 2, … sequences, other than the one of an earlier run.

        What was measured in this run remains.
        """
        before_s = self.alone.token_s
        for alone, concurrent in self._by_cores.values():
            for known in (*alone.all.values(), *concurrent.all.values()):
                for n in [n for n, time in known.items() if not time.is_fresh]:
                    del known[n]
            for n, each_s in seconds.items():
                if n not in (alone.by_threads if n == 1 else alone.by_sequences):
                    alone.add(max(each_s, seconds[1]), n_sequences=n)
        if before_s and not self._read.is_fresh:
            self._read.value *= seconds[1] / before_s

    def scale(self, factor: float) -> None:
        """The machine has become slower by this factor, on the cores that are free now."""
        for times in (*self.alone.all.values(), *self.concurrent.all.values(), {0: self._read}):
            for time in times.values():
                time.value *= factor

    def state(self) -> CostState:
        """What was measured, as JSON types."""
        by_cores = {str(n): [each.state() for each in both] for n, both in self._by_cores.items()}
        return {"times": by_cores, "read_s": self._read.value, "latency_s": self._latency.value}

    def restore(self, state: CostState) -> None:
        """Start from the state() of an earlier run. Raises KeyError, TypeError or ValueError if it is damaged."""
        for n_cores, both in state["times"].items():
            self.use_cores(int(between(int(n_cores), 0, MAX_THREADS)))
            for times, found in zip((self.alone, self.concurrent), both, strict=True):
                times.restore(found)
        self.use_cores(0)
        read_s, latency_s = state["read_s"], state["latency_s"]
        self._read = Time(duration(read_s)) if read_s else self._read
        self._latency = Time(duration(latency_s)) if latency_s else self._latency
