"""Measures a pair on this machine: the cost of decodes, sequential and concurrent, and the acceptance rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median

from duo.engine.decoder import Decoder, decode_all, return_to
from duo.errors import DuoError
from duo.spec.sampling import Greedy

SIZES = tuple(range(1, 18))  # of batches: up to sixteen candidates and the token before them
_DRAFT_TOKENS = 24
_PROMPT = list(range(100, 132))  # the tokens in the cache while a decode is timed

Progress = Callable[[str, float], None]  # called with what is measured, and the share that is done


class Stopped(Exception):
    """Measuring was cancelled."""


@dataclass(slots=True)
class Measurements:
    """Times in seconds."""

    target: dict[tuple[int, int], float] = field(default_factory=dict)  # by (threads, tokens in the batch)
    draft: dict[int, float] = field(default_factory=dict)  # by threads
    # Concurrent, by threads of (target, draft): the target's times by tokens in the batch, and the draft's time.
    beside: dict[tuple[int, int], tuple[dict[int, float], float]] = field(default_factory=dict)
    scores: list[tuple[float, bool]] = field(default_factory=list)  # (confidence, accepted) of each candidate


class Meter:
    """Measures one pair of contexts, on the calling thread. Raises Stopped soon after `stop` is set."""

    def __init__(self, target: Decoder, draft: Decoder, progress: Progress, stop: threading.Event) -> None:
        """Each context must have room for 64 tokens and 32 rows of logits."""
        self._target = target
        self._draft = draft
        self._progress = progress
        self._stop = stop
        self._n_jobs = 1
        self._n_done = 0

    def measure(
        self,
        target_threads: Sequence[int],
        draft_threads: Sequence[int],
        splits: Sequence[tuple[int, int]],
        n_text: int,
    ) -> Measurements:
        """Measure all times for these numbers of threads. `n_text`: how often accept() will be called."""
        self._n_jobs = (len(target_threads) + len(splits)) * len(SIZES) + len(draft_threads) + n_text
        found = Measurements()
        for decoder in (self._target, self._draft):
            decoder.rollback(0)
            decode_all(decoder, _PROMPT)
        for n_threads in draft_threads:
            self._begin(f"the draft on {n_threads} threads")
            self._draft.set_threads(n_threads, n_threads)
            found.draft[n_threads] = self._time_of(self._draft, 1, _DRAFT_TOKENS)
        for n_threads, n in product(target_threads, SIZES):
            self._begin(f"the target on {n_threads} threads, {n} tokens at once")
            self._target.set_threads(n_threads, n_threads)
            found.target[n_threads, n] = self._time_of(self._target, n)
        for split in splits:
            found.beside[split] = self._both(split)
        return found

    def accept(self, prompt: Sequence[int], n_tokens: int, n_threads: int) -> list[tuple[float, bool]]:
        """Generate `n_tokens` after `prompt` with the target, and score the draft's prediction of each."""
        self._begin("the draft's acceptance rate")
        for decoder in (self._target, self._draft):
            decoder.set_threads(n_threads, n_threads)
            decoder.rollback(0)
        sampler, tokens = Greedy(), list(prompt)
        logits = decode_all(self._target, tokens)
        while len(tokens) < len(prompt) + n_tokens:
            self._check()
            tokens.append(sampler.sample(logits[0], len(tokens)))
            logits = self._target.decode(tokens[-1:])
        guesses = decode_all(self._draft, prompt)[0:1].copy()
        scores = []
        for right in tokens[len(prompt) :]:
            n_vocab = min(guesses.shape[1], self._target.n_vocab)
            guess = sampler.guess(guesses[0, :n_vocab], 0)
            scores.append((guess.confidence, guess.token == right))
            if right >= self._draft.n_vocab:
                break
            guesses = self._draft.decode([right])
        return scores

    def _both(self, split: tuple[int, int]) -> tuple[dict[int, float], float]:
        """The times of both models running concurrently, each on its own thread."""
        draft_times: list[float] = []
        failures: list[Exception] = []
        done = threading.Event()
        self._draft.set_threads(split[1], split[1])

        def draft() -> None:
            try:
                while not done.is_set():
                    draft_times.append(self._time_of(self._draft, 1, 1))
            except (Stopped, DuoError) as error:
                failures.append(error)

        drafting = threading.Thread(target=draft, name="duo-draft")
        self._target.set_threads(split[0], split[0])
        drafting.start()
        try:
            times = {}
            for n in SIZES:
                self._begin(f"both on {split[0]} + {split[1]} threads, {n} tokens at once")
                times[n] = self._time_of(self._target, n)
        finally:
            done.set()
            drafting.join()
        if failures:
            raise failures[0]
        return times, median(draft_times)

    def _time_of(self, decoder: Decoder, n: int, least: int = 3) -> float:
        """The median time of a batch of `n` tokens after the same prompt, of at least `least` runs."""
        tokens = list(range(200, 200 + n))
        times: list[float] = []
        end = time.perf_counter() + 0.1
        while len(times) < least or (least > 1 and time.perf_counter() < end):
            self._check()
            start = time.perf_counter()
            decoder.decode(tokens, n)
            times.append(time.perf_counter() - start)
            return_to(decoder, _PROMPT)
        return median(times)

    def _begin(self, what: str) -> None:
        self._check()
        self._progress(what, self._n_done / self._n_jobs)
        self._n_done += 1

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped
