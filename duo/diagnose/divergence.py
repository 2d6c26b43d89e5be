"""Whether a draft changes the target's text: the same prompts with it and without."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from duo.config import GenerationConfig
from duo.engine.engine import Engine
from duo.engine.generation import Proposers
from duo.engine.model_pair import ModelPair
from duo.engine.request import Request, choosing
from duo.engine.statistics import Statistics
from duo.errors import DecodeError
from duo.speculation.policy import Policy
from duo.speculation.types import common_prefix

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
    drafted: Statistics
    difference: Divergence | None

    @property
    def n_prepared(self) -> int:
        """Outcomes, each in a branch of the draft."""
        draft = self.drafted.draft
        return draft.branches.prepared if draft is not None and draft.branches is not None else 0


def compare(
    engine: Engine, prompt: Sequence[int], config: GenerationConfig, policy: Policy, stop: threading.Event
) -> Comparison:
    """Generate after `prompt`, in contexts that exist, with a draft and `policy`, and without. Raises DecodeError."""
    slot = engine.slot
    drafted, found = _write(engine, prompt, config, slot.sources(slot.new_draft(policy), lookup=True), stop)
    alone, _ = _write(engine, prompt, config, slot.sources(), stop)
    n_same = common_prefix(alone, drafted)
    difference = None
    if not n_same == len(alone) == len(drafted):
        text = [*prompt, *alone[:n_same]]
        margin = engine.call(lambda slot: _margin(slot, text, config))
        first, second = (tokens[n_same] if n_same < len(tokens) else -1 for tokens in (alone, drafted))
        difference = Divergence(n_same, first, second, *margin)
    return Comparison(len(alone), found, difference)


def _write(
    engine: Engine, prompt: Sequence[int], config: GenerationConfig, sources: Proposers, stop: threading.Event
) -> tuple[list[int], Statistics]:
    tokens: list[int] = []
    with engine.start(Request(prompt, config, proposers=sources)) as stream:
        for step in stream:
            tokens.extend(step.tokens)
            if stop.is_set():
                break
    if (error := stream.request.metrics.draft_error) is not None:
        raise DecodeError(f"the draft failed ({error}): nothing can be checked")
    return tokens, stream.statistics


def _margin(slot: ModelPair, text: Sequence[int], config: GenerationConfig) -> tuple[float, float, bool]:
    """Divergence's gap, kernels and flips for the token after `text`."""
    assert slot.target_cache is not None
    target = slot.target_cache.context
    target.set_threads(slot.threads.target, slot.threads.target)
    _, sampler = choosing(slot.target, replace(config, grammar=None))
    recent = text[-sampler.n_recent :] if sampler.n_recent else ()
    rows = []
    for n in (1, _SEVERAL, slot.drafting.n_max + 1):
        target.rollback(0)
        for start in range(0, len(text), n):
            row = target.decode(text[start : start + n])[0]
        rows.append(row.copy())
    target.rollback(0)
    one, *others = (sampler.judge(row.copy(), len(text), recent) for row in rows)
    kernels = max(float(np.abs(rows[0] - row).max()) for row in rows[1:]) / (config.sampling.temp or 1.0)
    return one.confidence, kernels, any(other.token != one.token for other in others)
