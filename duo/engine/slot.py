"""Slot: a pair of contexts that write one text after the other, and keep what the next one may begin with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from duo.config import DraftConfig, SamplingConfig, StopConfig, ThreadConfig
from duo.engine.cache import Cache
from duo.engine.generation import Generation
from duo.engine.helpers import Helpers
from duo.engine.metrics import Metrics
from duo.engine.pair import Pair
from duo.engine.text import Ending, TextStream
from duo.llama.context import Context
from duo.llama.grammar import Grammar
from duo.models.profiles import remembered, restore
from duo.spec.policy import Policy
from duo.spec.sampling import chooser
from duo.spec.schedule import Schedule
from duo.spec.types import Step
from duo.spec.verify import Matching


@dataclass(slots=True)
class Task:
    """A text that is asked for."""

    prompt: list[int]
    sampling: SamplingConfig
    stop: StopConfig
    grammar: str | None = None  # GBNF
    metrics: Metrics = field(default_factory=Metrics)
    n_cached: int = 0  # tokens of the prompt that had been read for an earlier text


class Slot:
    """Writes texts with one pair. Used by one thread, interrupt() excepted."""

    def __init__(
        self,
        pair: Pair,
        contexts: tuple[Context, Context | None],
        threads: ThreadConfig,
        drafting: DraftConfig,
        schedules: tuple[Schedule, ...],
        learned: dict[str, Any],
        *,
        can_be_helped: bool = True,
    ) -> None:
        """`learned` is what a Profile keeps; `can_be_helped`: whether drafts on other machines are of use."""
        self.can_be_helped = can_be_helped
        self.learned = learned
        self.context = contexts[0]
        self.n_ctx = self.context.n_ctx
        self._model = pair.target
        self._target = Cache(contexts[0])
        self._draft = Cache(contexts[1]) if contexts[1] is not None else None
        self._threads = threads
        self._drafting = drafting
        self._schedules = schedules
        self._end_tokens = pair.target.end_tokens()
        self._running: Generation | None = None
        self._guard = threading.Lock()  # for _running, so that an interruption never hits the next text

    def banned(self, stop: StopConfig) -> list[int]:
        """Tokens that a text may not have."""
        return self._end_tokens if stop.ignore_eos else []

    def write(
        self, task: Task, put: Callable[[Step], None], stop: threading.Event, helpers: Helpers | None = None
    ) -> None:
        """Write a text until its end, or until `stop` is set; what happened is in `task.metrics`.

        Raises DecodeError, or UsageError for a grammar that is none.
        """
        generation = self._generation(task, helpers)
        restore(generation.policy, self.learned, task.sampling.mode)
        task.n_cached = self._target.begin(task.prompt)
        if self._draft is not None:
            self._draft.begin(task.prompt)
        self._target.context.set_threads(self._threads.target, self._threads.target_batch)
        with self._guard:
            self._running = generation
            if stop.is_set():
                generation.interrupt()
        try:
            generation.run(put, stop)
        finally:
            with self._guard:
                self._running = None
            for cache, tokens in ((self._target, generation.tokens), (self._draft, generation.draft_tokens)):
                if cache is not None:
                    cache.context.resume()
                    cache.end(tokens)
        if self._draft is not None and generation.used_policy is generation.policy:
            self.learned = remembered(generation.policy, self.learned, task.sampling.mode)

    def interrupt(self) -> None:
        """Let the present text, if there is one, end soon, from any thread: a long prompt is not read to its end."""
        with self._guard:
            if self._running is not None:
                self._running.interrupt()

    def _generation(self, task: Task, helpers: Helpers | None) -> Generation:
        model, stop = self._model, task.stop
        sampler = chooser(task.sampling, self.banned(stop))
        constraint = Grammar(model, task.grammar) if task.grammar is not None else None
        return Generation(
            target=self._target.context,
            draft=self._draft.context if self._draft is not None else None,
            prompt=task.prompt,
            verifier=Matching(sampler, constraint),
            guesser=sampler,
            ending=Ending(stop, TextStream(model.piece, stop.stop_strings), model.is_end),
            policy=Policy(self._drafting.n_max, self._drafting.n_ahead, self._schedules, self._threads.draft),
            threads=self._threads,
            metrics=task.metrics,
            helpers=helpers if self.can_be_helped else None,
        )
