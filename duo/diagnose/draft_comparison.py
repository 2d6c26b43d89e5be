"""What drafts, and the text itself, would bring a target: measurements and forecasts of `duo tune` without -md."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from duo.config import EngineConfig
from duo.diagnose.measure import Meter, learn_scores
from duo.diagnose.target_meter import SIZES, Progress, TargetMeter
from duo.engine.contexts import draft_context, target_context, warm_up
from duo.engine.cores import ON_CPU, plan_threads
from duo.engine.translated import MORE_TOKENS, Translation
from duo.errors import ModelError, PromptError
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.model import Model
from duo.spec.lookup import Lookup
from duo.spec.pair import Machine
from duo.spec.policy import Policy, StepCost
from duo.spec.schedule import Schedule, fastest
from duo.spec.types import Proposal, Source, common_prefix

N_MAX = SIZES[-1] - 1  # candidates in the largest batch
_BOTH = (
    1,
    2,
    4,
    8,
    SIZES[-1],
)  # sizes that are timed with a concurrent draft; between them, it slows down alike
_LEAST_CTX = 256  # enough for what is timed


@dataclass(frozen=True, slots=True)
class TargetFigures:
    """What was measured of a target alone."""

    target_s: list[float]  # for a batch of each of SIZES
    texts: list[tuple[Sequence[int], list[int]]]  # prompt, and what the target writes after it


@dataclass(frozen=True, slots=True)
class LookupFigures:
    """What the text as its own draft would bring."""

    rate: float  # tokens/s
    n_verified: int
    n_accepted: int


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """What was measured of a draft, and what follows from it."""

    is_translated: bool  # whether it has another vocabulary
    machine: Machine  # the draft's times are for a token of the target's vocabulary
    scores: list[tuple[float, bool]]  # (confidence, accepted) of its prediction of each token
    rates: dict[Schedule, float]  # forecast in tokens/s

    @property
    def acceptance(self) -> float:
        """The share of its predictions that are right."""
        return sum(right for _, right in self.scores) / len(self.scores) if self.scores else 0.0

    @property
    def best(self) -> Schedule:
        """The schedule to use."""
        return fastest(self.rates)


class DraftComparison:
    """Measures one target once, then any number of drafts. One thread calls it. A context manager."""

    def __init__(
        self,
        target: Model,
        config: EngineConfig,
        prompts: Sequence[Sequence[int]],
        n_text: int,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`n_text`: tokens to generate after each of `prompts`. `note` gets lines for people.

        Raises ModelError if the target cannot verify candidates, PromptError for a prompt that is empty or too long,
        MemoryLimitError or UsageError.
        """
        self._target, self._config = target, config
        self._prompts, self._n_text, self._note = prompts, n_text, note
        self._has_announced = False
        self._n_ctx = _context_size(target, prompts, n_text)
        self._threads = plan_threads(config, drafting=False, target_on=target.places)
        self._context = target_context(target, config, self._threads, self._n_ctx, N_MAX)
        try:
            if target.is_recurrent or not self._context.probe_rollback():
                raise ModelError(f"{target.path}: it cannot roll back its cache, so nothing can be drafted for it")
            if config.warmup:
                warm_up(self._context, target, SIZES[-1], SIZES[-1])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> DraftComparison:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the target's context."""
        self._context.close()

    @property
    def n_max(self) -> int:
        """The most candidates that the target can verify at once."""
        return min(N_MAX, N_MAX if self._context.n_rollback is None else self._context.n_rollback)

    def measure_target(self, show: Progress, stop: threading.Event) -> TargetFigures:
        """Time the target, and let it write the texts.

        Raises Stopped once `stop` is set, DecodeError, MeasurementError.
        """
        n_threads = self._threads.target
        meter = TargetMeter(self._context, show, stop, len(SIZES) + len(self._prompts), self._note)
        self._announce(meter, n_threads, 1)
        times = _increasing(meter.target_times(n_threads))
        self._note_doubts(meter)
        texts = [
            (prompt, meter.write(prompt, self._n_text, n_threads, self._target.is_end)) for prompt in self._prompts
        ]
        return TargetFigures(times, texts)

    def measure_draft(self, draft: Model, target: TargetFigures, show: Progress, stop: threading.Event) -> DraftFigures:
        """Time a draft, alone and concurrently, and let it predict the texts.

        Raises Stopped once `stop` is set, ModelError if it cannot roll back, DecodeError, MeasurementError,
        MemoryLimitError, PromptError or UsageError.
        """
        if not draft.can_roll_back:
            raise ModelError(f"{draft.path}: it cannot roll back its cache")
        threads = plan_threads(self._config, drafting=True, target_on=self._target.places, draft_on=draft.places)
        differs = vocabulary_difference(self._target, draft) is not None
        translation = Translation(self._target, draft) if differs else None
        context = draft_context(draft, self._config, threads, math.ceil(MORE_TOKENS * self._n_ctx), n_branches=0)
        assert context is not None
        with closing(context):
            n_jobs = len(threads.draft) + 1 + len(_BOTH) + len(target.texts)
            meter = Meter(self._context, context, show, stop, n_jobs, self._note)
            self._announce(meter, max(self._threads.target, sum(threads.beside)), len(_BOTH) / len(SIZES))
            draft_s, n_threads = min((meter.draft_time(n), n) for n in threads.draft)
            pair_s = meter.draft_time(n_threads, 2)
            found, concurrent_draft_s = meter.both(threads.beside, _BOTH)
            self._note_doubts(meter)
            scores: list[tuple[float, bool]] = []
            ratios = []
            for prompt, text in target.texts:
                some, ratio = meter.score(prompt, text, n_threads, translation)
                scores += some
                ratios.append(ratio)
        ratio = sum(ratios) / len(ratios)
        # A concurrent decode cannot be faster: where it seems so, the measurement is noisy.
        slower = np.interp(SIZES, _BOTH, [max(1.0, found[n] / target.target_s[n - 1]) for n in _BOTH])
        concurrent_s = _increasing([float(seconds) for seconds in slower * target.target_s])
        machine = Machine(
            target.target_s,
            ratio * draft_s,
            concurrent_s,
            ratio * max(draft_s, concurrent_draft_s),
            pair_s=ratio * max(draft_s, pair_s),
        )
        return DraftFigures(differs, machine, scores, forecast_rates(machine, scores, self.n_max))

    def _note_doubts(self, meter: TargetMeter) -> None:
        if meter.doubts:
            self._note(f"tentative: {meter.doubts}")

    def _announce(self, meter: TargetMeter, n_threads: int, n_groups: float) -> None:
        """Set the limit of the time to measure; a line says it once, since all take about as long."""
        on_cpu = self._target.places == ON_CPU
        times = meter.announce(n_threads, n_groups, self._n_text * len(self._prompts), on_cpu=on_cpu)
        expected_s, limit_s = map(math.ceil, times)
        if not self._has_announced:
            self._note(
                f"measuring takes about {expected_s} s for the target and as much for each draft, at most "
                f"{limit_s} s each"
            )
        self._has_announced = True


def _increasing(times: Sequence[float]) -> list[float]:
    """The `times` by batch size, without those that a disturbance made longer than that of a larger batch."""
    return list(accumulate(reversed(times), min))[::-1]


def forecast_rates(machine: Machine, scores: Sequence[tuple[float, bool]], n_max: int) -> dict[Schedule, float]:
    """The forecast of each schedule in tokens/s, with candidates of these `scores`."""
    policy = Policy(n_max, 2 * n_max, separate_devices=True)
    policy.learn_machine(machine)
    policy.begin(0, mode="greedy")
    if scores:
        learn_scores(policy, scores)
    return {schedule: each.rate for schedule, each in policy.forecasts().items()}


def replay_lookup(target: TargetFigures, n_max: int) -> LookupFigures:
    """What the lookup of candidates would bring in the texts that the target wrote, at the times that it takes."""
    policy = Policy(n_max, 2 * n_max, (Schedule.OFF,))
    for n, seconds in zip(SIZES, target.target_s, strict=True):
        policy.alone.add_target(n, seconds)
    total_s, n_tokens, n_verified, n_accepted = 0.0, 0, 0, 0
    for prompt, text in target.texts:
        policy.begin(len(prompt), mode="greedy")
        lookup, done = Lookup(), 1  # the first token belongs to the prefill
        lookup.begin([*prompt, *text[:1]])
        while done < len(text):
            found = lookup.propose(n_max)
            decision = policy.decide(len(text) - done, Proposal(), found)
            candidates = found.candidates(decision.n_verify).tokens
            n_right = common_prefix(candidates, text[done:])
            seconds = target.target_s[len(candidates)]
            policy.learn_step(n_right + 1, StepCost(len(candidates), seconds, seconds, Source.LOOKUP))
            lookup.extend(text[done : done + n_right + 1])
            done += n_right + 1
            total_s += seconds
            n_verified, n_accepted = n_verified + len(candidates), n_accepted + n_right
        n_tokens += done - 1
    return LookupFigures(n_tokens / total_s if n_tokens else 1 / target.target_s[0], n_verified, n_accepted)


def _context_size(target: Model, prompts: Sequence[Sequence[int]], n_text: int) -> int:
    """Tokens of a context for the longest prompt. Raises PromptError."""
    if not all(prompts):
        raise PromptError("a prompt has no tokens")
    needed = max(map(len, prompts)) + n_text
    if needed > target.n_ctx_train:
        raise PromptError(f"a prompt and {n_text} more tokens exceed the {target.n_ctx_train} of the model's context")
    return min(max(_LEAST_CTX, needed), target.n_ctx_train)
