"""Whether a draft changes the target's text: the same prompts with it and without."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from duo.config import GenerationConfig
from duo.engine.engine import Engine
from duo.engine.metrics import Metrics
from duo.engine.request import Drafts
from duo.engine.request_writer import choosing
from duo.engine.slot import Slot
from duo.errors import DecodeError
from duo.spec.policy import Policy
from duo.spec.types import common_prefix

_SEVERAL = 5  # rows of batches that are compared with single rows, as are the largest: devices have kernels for those


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two texts."""

    index: int  # of the first token that differs
    alone: int  # the token without a draft; -1: the text had ended
    drafted: int  # the token with a draft
    gap: float  # between the two best scores
    kernels: float  # largest difference of scores between batches of one row, of several and of the most
    flips: bool  # whether the target alone chooses another token in batches of several rows

    @property
    def is_near_tie(self) -> bool:
        """Whether the batch size explains the difference: by a small gap, or by what a filter keeps."""
        return self.flips or self.gap <= 2 * self.kernels


@dataclass(frozen=True, slots=True)
class Comparison:
    """One text, generated with a draft and without."""

    n_tokens: int
    n_verified: int
    n_accepted: int
    n_prepared: int  # outcomes, each in a branch of the draft
    difference: Divergence | None


class Checker:
    """Generates with an engine's draft, and with its target alone."""

    def __init__(self, engine: Engine, config: GenerationConfig, stop: threading.Event) -> None:
        """The engine's contexts must have been made. The seed of `config` is not used."""
        self._engine = engine
        self._config = config
        self._stop = stop

    def compare(self, prompt: Sequence[int], seed: int, policy: Policy) -> Comparison:
        """Generate after `prompt` with the draft and `policy`, and without. Raises DecodeError if the draft fails."""
        config = replace(self._config, sampling=replace(self._config.sampling, seed=seed))
        drafted, metrics = self._write(prompt, config, policy)
        alone, _ = self._write(prompt, config, None)
        n_same = common_prefix(alone, drafted)
        found = metrics.statistics()
        difference = None
        if not n_same == len(alone) == len(drafted):
            text = [*prompt, *alone[:n_same]]
            gap, kernels, flips = self._engine.call(lambda slot: _margin(slot, text, config))
            first = [text[n_same] if n_same < len(text) else -1 for text in (alone, drafted)]
            kernels /= config.sampling.temp or 1.0
            difference = Divergence(n_same, first[0], first[1], gap, kernels, flips)
        branches = found.draft.branches if found.draft is not None else None
        n_prepared = branches.prepared if branches is not None else 0
        return Comparison(len(alone), found.verified, found.accepted, n_prepared, difference)

    def _write(
        self, prompt: Sequence[int], config: GenerationConfig, policy: Policy | None
    ) -> tuple[list[int], Metrics]:
        """The text with the draft and `policy`, and with lookup, or with the target alone for None."""
        draft = self._engine.slot.new_draft(policy) if policy is not None else None
        tokens: list[int] = []
        with self._engine.start(prompt, config, drafts=Drafts(draft, lookup=draft is not None)) as stream:
            for step in stream:
                tokens.extend(step.tokens)
                if self._stop.is_set():
                    break
        metrics = stream.request.metrics
        if metrics.draft_error is not None:
            raise DecodeError(f"the draft failed ({metrics.draft_error}): nothing can be checked")
        return tokens, metrics


def _margin(slot: Slot, text: Sequence[int], config: GenerationConfig) -> tuple[float, float, bool]:
    """Divergence's gap, kernels (as logits) and flips for the token after `text`."""
    assert slot.target_cache is not None
    target = slot.target_cache.context
    target.set_threads(slot.threads.target, slot.threads.target)
    _, guesser = choosing(slot.target, replace(config, grammar=None))
    recent = text[-guesser.n_recent :] if guesser.n_recent else ()
    rows = []
    for n in (1, _SEVERAL, slot.drafting.n_max + 1):
        target.rollback(0)
        for start in range(0, len(text), n):
            row = target.decode(text[start : start + n])[0]
        rows.append(row.copy())
    target.rollback(0)
    one, *others = (guesser.judge(row.copy(), len(text), recent) for row in rows)
    kernels = max(float(np.abs(rows[0] - row).max()) for row in rows[1:])
    return one.confidence, kernels, any(other.token != one.token for other in others)
