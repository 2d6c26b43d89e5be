"""What drafts, and the text itself, would bring a target: measurements and forecasts of `duo tune` without -md."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from duo.config import AUTO_DRAFT, EngineConfig
from duo.diagnose.measure import SIZES, Meter, Progress
from duo.diagnose.timing import Measurements
from duo.engine.contexts import draft_context, target_context, warm_up
from duo.engine.cores import plan_threads
from duo.engine.translated import MORE_TOKENS, Translation
from duo.errors import ModelError, PromptError
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.model import Model
from duo.spec.lookup import Lookup
from duo.spec.policy import Policy, StepCost
from duo.spec.schedule import Schedule, fastest
from duo.spec.types import Proposal, Source, common_prefix

_BOTH = (1, 2, 4, 8, SIZES[-1])  # sizes that are timed with a concurrent draft
_LEAST_CTX = 256  # enough for what is timed

Text = tuple[Sequence[int], list[int]]  # a prompt, and what the target writes after it


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """What was measured of a draft, and what follows from it."""

    is_translated: bool  # whether it has another vocabulary
    policy: Policy  # that has learned the times, the draft's for a token of the target's vocabulary
    acceptance: float
    n_scored: int  # tokens that it was compared with

    @property
    def rates(self) -> dict[Schedule, float]:
        """The forecasts in tokens/s."""
        return {schedule: each.rate for schedule, each in self.policy.forecasts().items()}

    @property
    def best(self) -> Schedule:
        """The schedule to use."""
        return fastest(self.rates)


@dataclass(frozen=True, slots=True)
class LookupFigures:
    """What the text as its own draft would bring; `target_s` are the times of the target from one token on."""

    target_s: list[float]
    rate: float  # tokens/s
    n_verified: int
    n_accepted: int


class DraftComparison:
    """Measures one target once, then any number of drafts. One thread calls it; closing() frees the target's context.

    Its methods raise Stopped once `stop` is set, DecodeError and MeasurementError.
    """

    def __init__(
        self,
        target: Model,
        config: EngineConfig,
        prompts: Sequence[Sequence[int]],
        n_text: int,
        stop: threading.Event,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`n_text`: tokens to generate after each of `prompts`. `note` gets lines for people.

        Raises ModelError if the target cannot verify candidates, PromptError for a prompt that is empty or too long,
        MemoryLimitError or UsageError.
        """
        self._target, self._config, self._stop, self._note = target, config, stop, note
        self._n_text = n_text
        self.texts: list[Text] = [(prompt, []) for prompt in prompts]  # until measure_target(), only the prompts
        self.measured = Measurements()  # of the target alone
        self._n_ctx = _context_size(target, prompts, n_text)
        self._threads = plan_threads(config, drafting=False, target_on=target.places)
        self._context = target_context(target, config, self._threads, self._n_ctx, AUTO_DRAFT)
        try:
            if target.is_recurrent or not self._context.probe_rollback():
                raise ModelError(f"{target.path}: it cannot roll back its cache, so nothing can be drafted for it")
            if config.warmup:
                warm_up(self._context, target, SIZES[-1], SIZES[-1])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the target's context."""
        self._context.close()

    @property
    def n_max(self) -> int:
        """The most candidates that the target can verify at once."""
        return min(AUTO_DRAFT, AUTO_DRAFT if self._context.n_rollback is None else self._context.n_rollback)

    def measure_target(self, show: Progress) -> None:
        """Time the target, and let it write the texts."""
        n_threads = self._threads.target
        meter = Meter(self._context, None, show, self._stop, self._note)
        expected_s, limit_s = self._announce(meter, n_threads, 1)
        self._note(
            f"measuring takes about {expected_s} s for the target and as much for each draft, at most {limit_s} s each"
        )
        self.measured = meter.measure([n_threads])
        self.texts = [
            (prompt, meter.write(prompt, self._n_text, n_threads, self._target.is_end)) for prompt, _ in self.texts
        ]

    def measure_draft(self, draft: Model, show: Progress) -> DraftFigures:
        """Time a draft, alone and concurrently, and let it predict the texts.

        Raises ModelError if it cannot roll back, MemoryLimitError, PromptError or UsageError.
        """
        if not draft.can_roll_back:
            raise ModelError(f"{draft.path}: it cannot roll back its cache")
        threads = plan_threads(self._config, drafting=True, target_on=self._target.places, draft_on=draft.places)
        differs = vocabulary_difference(self._target, draft) is not None
        translation = Translation(self._target, draft) if differs else None
        context = draft_context(draft, self._config, threads, math.ceil(MORE_TOKENS * self._n_ctx), n_branches=0)
        assert context is not None
        with closing(context):
            meter = Meter(self._context, context, show, self._stop, self._note)
            self._announce(meter, max(self._threads.target, sum(threads.beside)), len(_BOTH) / len(SIZES))
            found = meter.measure([], threads.draft, [threads.beside], _BOTH)
            found.target = self.measured.target
            scored = [meter.score(prompt, text, found.fastest_draft, translation) for prompt, text in self.texts]
            found.add_scores(scored)
        policy = found.policy(self._threads.target, threads.beside, self.n_max)
        return DraftFigures(differs, policy, found.acceptance, len(found.scores))

    def lookup(self) -> LookupFigures:
        """What the lookup of candidates would bring."""
        return replay_lookup(self.measured.times(self._threads.target), self.texts, self.n_max)

    def _announce(self, meter: Meter, n_threads: int, n_groups: float) -> tuple[int, int]:
        n_tokens = self._n_text * len(self.texts)
        return meter.announce(n_threads, n_groups, n_tokens, self._target.places)


def replay_lookup(times: dict[int, float], texts: Sequence[Text], n_max: int) -> LookupFigures:
    """What the lookup would bring in the `texts` that the target wrote, at its `times` by tokens in a batch."""
    policy = Policy(n_max, 2 * n_max, (Schedule.OFF,))
    for n, seconds in times.items():
        policy.alone.add_target(n, seconds)
    target_s = policy.alone.curve(SIZES[-1])
    total_s, n_tokens, n_verified, n_accepted = 0.0, 0, 0, 0
    for prompt, text in texts:
        policy.begin(len(prompt), mode="greedy")
        lookup, done = Lookup(), 1  # the first token belongs to the prefill
        lookup.begin([*prompt, *text[:1]])
        while done < len(text):
            found = lookup.propose(n_max)
            decision = policy.decide(len(text) - done, Proposal(), found)
            candidates = found.candidates(decision.n_verify).tokens
            n_right = common_prefix(candidates, text[done:])
            seconds = target_s[len(candidates)]
            policy.learn_step(n_right + 1, StepCost(len(candidates), seconds, seconds, Source.LOOKUP))
            lookup.extend(text[done : done + n_right + 1])
            done += n_right + 1
            total_s += seconds
            n_verified, n_accepted = n_verified + len(candidates), n_accepted + n_right
        n_tokens += done - 1
    rate = n_tokens / total_s if n_tokens else 1 / target_s[0]
    return LookupFigures(target_s, rate, n_verified, n_accepted)


def _context_size(target: Model, prompts: Sequence[Sequence[int]], n_text: int) -> int:
    """Tokens of a context for the longest prompt. Raises PromptError."""
    if not all(prompts):
        raise PromptError("a prompt has no tokens")
    needed = max(map(len, prompts)) + n_text
    if needed > target.n_ctx_train:
        raise PromptError(f"a prompt and {n_text} more tokens exceed the {target.n_ctx_train} of the model's context")
    return min(max(_LEAST_CTX, needed), target.n_ctx_train)
