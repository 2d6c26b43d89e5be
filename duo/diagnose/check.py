"""Whether a draft changes what a target writes: the same prompts with it and without."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from duo.config import GenerationConfig
from duo.engine.engine import Engine
from duo.engine.metrics import Metrics
from duo.engine.slot import Drafts, Slot, choosing
from duo.errors import DecodeError
from duo.spec.policy import Policy

_SEVERAL = 5  # rows in a batch, where one row is compared with several


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two texts part."""

    index: int  # of the first token that differs
    alone: int  # what the target wrote there without a draft; -1: its text had ended
    drafted: int  # and with one
    gap: float  # between its two best scores there
    kernels: float  # by which scores differ there between batches of one row and of several
    flips: bool  # whether the target alone writes something else there in batches of several rows

    @property
    def is_near_tie(self) -> bool:
        """Whether the size of a batch decides: on a gap that is small enough, or on who is left by a filter."""
        return self.flips or self.gap <= 2 * self.kernels


@dataclass(frozen=True, slots=True)
class Comparison:
    """One text, written with a draft and without."""

    n_tokens: int
    n_verified: int
    n_accepted: int
    difference: Divergence | None


class Checker:
    """Lets an engine write with its draft, and with the target alone."""

    def __init__(self, engine: Engine, config: GenerationConfig, stop: threading.Event) -> None:
        """The engine's contexts must have been made. `config` is how texts are written, but for the seed."""
        self._engine = engine
        self._config = config
        self._stop = stop

    def compare(self, prompt: Sequence[int], seed: int, policy: Policy) -> Comparison:
        """Write after `prompt` with the draft and `policy`, and without."""
        config = self._seeded(seed)
        drafted, metrics = self._write(prompt, config, policy)
        alone, _ = self._write(prompt, config, None)
        n_same = next(
            (i for i, pair in enumerate(zip(alone, drafted, strict=False)) if pair[0] != pair[1]),
            min(len(alone), len(drafted)),
        )
        verified, accepted = (sum(getattr(step, n) for step in metrics.steps) for n in ("n_candidates", "n_accepted"))
        difference = None
        if not n_same == len(alone) == len(drafted):
            text = [*prompt, *alone[:n_same]]
            gap, kernels, flips = self._engine.call(lambda slot: _margin(slot, text, config))
            first = [text[n_same] if n_same < len(text) else -1 for text in (alone, drafted)]
            kernels /= config.sampling.temp or 1.0
            difference = Divergence(n_same, first[0], first[1], gap, kernels, flips)
        return Comparison(len(alone), verified, accepted, difference)

    def _seeded(self, seed: int) -> GenerationConfig:
        return replace(self._config, sampling=replace(self._config.sampling, seed=seed))

    def _write(
        self, prompt: Sequence[int], config: GenerationConfig, policy: Policy | None
    ) -> tuple[list[int], Metrics]:
        """The text with a draft, or without if there is no policy."""
        draft = self._engine.slot.new_draft(policy) if policy is not None else None
        tokens: list[int] = []
        with self._engine.start(prompt, config, drafts=Drafts(draft)) as stream:
            for step in stream:
                tokens.extend(step.tokens)
                if self._stop.is_set():
                    break
        metrics = stream.request.metrics
        if metrics.draft_error is not None:
            raise DecodeError(f"the draft failed ({metrics.draft_error}): nothing can be checked")
        return tokens, metrics


def _margin(slot: Slot, text: Sequence[int], config: GenerationConfig) -> tuple[float, float, bool]:
    """The gap between the two best scores after `text`, how far logits differ by the rows of the batches in which it is
    decoded, and whether the choice does.
    """
    assert slot.target_cache is not None
    target = slot.target_cache.context
    target.set_threads(slot.threads.target, slot.threads.target)
    _, guesser = choosing(slot.target, replace(config, grammar=None))
    recent = text[-guesser.n_recent :] if guesser.n_recent else ()
    rows = []
    for n in (1, _SEVERAL):
        target.rollback(0)
        for start in range(0, len(text), n):
            row = target.decode(text[start : start + n])[0]
        rows.append(row.copy())
    target.rollback(0)
    one, several = (guesser.judge(row.copy(), len(text), recent) for row in rows)
    return one.confidence, float(np.abs(rows[0] - rows[1]).max()), one.token != several.token
