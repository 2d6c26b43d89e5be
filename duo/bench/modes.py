"""duo's own ways to write, with one engine: they share its contexts and take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict

from duo.bench.contestant import Interrupted, Job, Run
from duo.config import GenerationConfig, StopConfig
from duo.engine.engine import Engine
from duo.engine.metrics import Metrics
from duo.engine.slot import Drafts
from duo.errors import DecodeError


class InProcess:
    """One of duo's ways. What it learns of the models it keeps from text to text, as `duo` does in its profile."""

    def __init__(self, engine: Engine, drafts: Callable[[threading.Event], Drafts]) -> None:
        """`drafts` gives what drafts, as soon as it is there."""
        self._engine = engine
        self._drafts = drafts

    def write(self, job: Job, stop: threading.Event) -> Run:
        """Write one text as `duo` would, from an empty cache. Raises DecodeError, Interrupted."""
        drafts = self._drafts(stop)
        self._engine.call(lambda slot: slot.forget())
        config = GenerationConfig(stop=StopConfig(job.n_tokens, (), True))
        pieces: list[bytes] = []
        with self._engine.start(self._engine.tokenize(job.prompt), config, drafts=drafts) as stream:
            for step in stream:
                pieces.extend(step.pieces)
                if stop.is_set():
                    raise Interrupted
        if stop.is_set():
            raise Interrupted
        metrics = stream.request.metrics
        if metrics.draft_error is not None:
            raise DecodeError(f"the draft failed: {metrics.draft_error}")
        return as_run(b"".join(pieces).decode("utf-8", "replace"), metrics)

    def interrupt(self) -> None:
        """Let the present text end soon, from any thread: a long prompt is not read to its end."""
        self._engine.interrupt()


def as_run(text: str, metrics: Metrics) -> Run:
    """What a generation of two tokens or more says of itself."""
    statistics = asdict(metrics.statistics())
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
