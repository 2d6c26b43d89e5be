"""Measures a pair on this machine: the cost of decodes, sequential and concurrent, and the acceptance rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from duo.engine.decoder import Decoder, decode_all, return_to
from duo.engine.drafter import Accepted, Drafter
from duo.engine.metrics import Metrics
from duo.engine.translated import TranslatedTarget, Translation
from duo.errors import DuoError
from duo.spec.sampling import Greedy
from duo.spec.types import Guess

SIZES = tuple(range(1, 18))  # of batches: up to sixteen candidates and the token before them
_DRAFT_TOKENS = 24
_MOST_ASKED = 16  # tokens of a draft with another vocabulary that predict nothing: then it has no prediction
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

    def scale_draft(self, factor: float) -> None:
        """Multiply the draft's times by its tokens for one of the target's."""
        self.draft = {n: factor * seconds for n, seconds in self.draft.items()}
        self.beside = {split: (times, factor * seconds) for split, (times, seconds) in self.beside.items()}


class TargetMeter:
    """Measures one target, on the calling thread. Raises Stopped soon after `stop` is set."""

    def __init__(self, target: Decoder, progress: Progress, stop: threading.Event, n_jobs: int = 1) -> None:
        """The context must have room for 64 tokens and 32 rows of logits. `n_jobs`: how many times will be measured."""
        self._target = target
        self._progress = progress
        self._stop = stop
        self._n_jobs = n_jobs
        self._n_done = 0

    def target_times(self, n_threads: int) -> list[float]:
        """The time of a batch of each of SIZES."""
        self._prepare(self._target, n_threads)
        times = []
        for n in SIZES:
            self._begin(f"the target on {n_threads} threads, {n} tokens at once")
            times.append(self._time_of(self._target, n))
        return times

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

    def _prepare(self, decoder: Decoder, n_threads: int) -> None:
        """Let `decoder` hold the tokens after which decodes are timed."""
        decoder.set_threads(n_threads, n_threads)
        decoder.rollback(0)
        decode_all(decoder, _PROMPT)

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


class Meter(TargetMeter):
    """Measures one pair of contexts, on the calling thread. Raises Stopped soon after `stop` is set."""

    def __init__(
        self, target: Decoder, draft: Decoder, progress: Progress, stop: threading.Event, n_jobs: int = 1
    ) -> None:
        """See TargetMeter."""
        super().__init__(target, progress, stop, n_jobs)
        self._draft = draft

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
        found.draft = {n_threads: self.draft_time(n_threads) for n_threads in draft_threads}
        for n_threads in target_threads:
            times = self.target_times(n_threads)
            found.target |= {(n_threads, n): seconds for n, seconds in zip(SIZES, times, strict=True)}
        for split in splits:
            found.beside[split] = self.both(split)
        return found

    def draft_time(self, n_threads: int) -> float:
        """The draft's time for one token."""
        self._begin(f"the draft on {n_threads} threads")
        self._prepare(self._draft, n_threads)
        return self._time_of(self._draft, 1, _DRAFT_TOKENS)

    def accept(
        self, prompt: Sequence[int], n_tokens: int, n_threads: int, translation: Translation | None = None
    ) -> tuple[list[tuple[float, bool]], float]:
        """Generate `n_tokens` after `prompt` with the target, and score() the draft on them."""
        self._begin("the draft's acceptance rate")
        text = self.write(prompt, n_tokens, n_threads)
        return self._score(prompt, text, n_threads, translation)

    def score(
        self, prompt: Sequence[int], text: Sequence[int], n_threads: int, translation: Translation | None = None
    ) -> tuple[list[tuple[float, bool]], float]:
        """The (confidence, accepted) of the draft's prediction of each token of `text`, and its tokens for each.

        `text` is what the target writes after `prompt`. The scores end before a token that the draft does not have.
        `translation`: of a draft with another vocabulary.
        """
        self._begin("the draft's acceptance rate")
        return self._score(prompt, text, n_threads, translation)

    def _score(
        self, prompt: Sequence[int], text: Sequence[int], n_threads: int, translation: Translation | None
    ) -> tuple[list[tuple[float, bool]], float]:
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
            while reader.guess is None and n_asked < _MOST_ASKED:
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
        for decoder, n_threads in zip((self._target, self._draft), split, strict=True):
            self._prepare(decoder, n_threads)
        draft_times: list[float] = []
        failures: list[Exception] = []
        done = threading.Event()

        def draft() -> None:
            try:
                while not done.is_set():
                    draft_times.append(self._time_of(self._draft, 1, 1))
            except (Stopped, DuoError) as error:
                failures.append(error)

        drafting = threading.Thread(target=draft, name="duo-draft")
        drafting.start()
        try:
            times = {}
            for n in sizes:
                self._begin(f"both on {split[0]} + {split[1]} threads, {n} tokens at once")
                times[n] = self._time_of(self._target, n)
        finally:
            done.set()
            drafting.join()
        if failures:
            raise failures[0]
        return times, median(draft_times)


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

    def begin(self) -> Accepted:
        """See TargetSide."""
        fresh, self._fresh = self._fresh, []
        return Accepted(0, fresh)

    def publish(self, epoch: int, position: int, guess: Guess, n_tokens: int, seconds: float) -> bool:  # noqa: ARG002
        """See TargetSide."""
        self._guesses[position] = guess
        return True
