"""duo's own ways to write, on one loaded pair: they share its contexts and take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duo.bench.contestant import Interrupted, Job, Run
from duo.config import DraftConfig, SamplingConfig, StopConfig, ThreadConfig
from duo.engine.helpers import Helpers
from duo.engine.metrics import Metrics
from duo.engine.pair import Pair
from duo.engine.slot import Slot, Task
from duo.errors import DecodeError
from duo.llama.context import Context
from duo.spec.schedule import Schedule
from duo.spec.types import Step


@dataclass(frozen=True, slots=True)
class Stage:
    """A loaded pair with its contexts, which are used by one thread, and the threads of both models."""

    pair: Pair
    context: Context
    draft_context: Context | None
    threads: ThreadConfig

    def forget(self) -> None:
        """Leave nothing of an earlier text in the KV caches."""
        self.context.rollback(0)
        if self.draft_context is not None:
            self.draft_context.rollback(0)


class InProcess:
    """One of duo's ways. What it learns of the models it keeps from text to text, as `duo` does in its profile."""

    def __init__(
        self,
        stage: Stage,
        drafting: DraftConfig,
        schedules: Sequence[Schedule],
        help_with: Callable[[threading.Event], Helpers] | None = None,
    ) -> None:
        """`help_with` gives the drafts elsewhere once they are there; they draft instead of the local one."""
        self._stage = stage
        drafts_here = help_with is None and tuple(schedules) != (Schedule.OFF,)
        contexts = (stage.context, stage.draft_context if drafts_here else None)
        self._slot = Slot(
            stage.pair, contexts, stage.threads, drafting, tuple(schedules), {}, can_be_helped=help_with is not None
        )
        self._help_with = help_with

    def write(self, job: Job, stop: threading.Event) -> Run:
        """Write one text as `duo` would, from an empty cache. Raises DecodeError, Interrupted."""
        helpers = self._help_with(stop) if self._help_with is not None else None
        self._stage.forget()
        text: list[bytes] = []

        def put(step: Step) -> None:
            text.extend(step.text)

        task = Task(self._stage.pair.target.tokenize(job.prompt), SamplingConfig(), StopConfig(job.n_tokens, (), True))
        self._slot.write(task, put, stop, helpers)
        if stop.is_set():
            raise Interrupted
        if task.metrics.draft_error is not None:
            raise DecodeError(f"the draft failed: {task.metrics.draft_error}")
        return as_run(b"".join(text).decode("utf-8", "replace"), task.metrics)

    def interrupt(self) -> None:
        """Let the present text end soon, from any thread: a long prompt is not read to its end."""
        self._slot.interrupt()


def as_run(text: str, metrics: Metrics) -> Run:
    """What a generation of two tokens or more says of itself."""
    statistics = metrics.statistics()
    generation, draft = statistics["generation"], statistics["draft"] or {}
    return Run(
        generation["tokens"],
        generation["tokens_per_s"],
        text.strip("\n"),
        prompt_tokens_per_s=statistics["prompt"]["tokens_per_s"],
        first_token_s=generation["time_to_first_token_s"],
        n_verified=draft.get("verified"),
        n_accepted=draft.get("accepted"),
        tokens_per_decode=generation["tokens_per_decode"],
        target_ms=generation["target_ms_per_decode"],
        draft_ms=draft.get("ms_per_token"),
        hidden=draft.get("hidden"),
        waste=draft.get("unused"),
        metrics=metrics,
    )
