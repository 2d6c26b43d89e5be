"""What drafts, and the text itself, would bring a target: measurements and forecasts of `duo tune` without -md."""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from duo.config import AUTO_DRAFT, EngineConfig
from duo.diagnose.measure import SIZES, Meter, Progress, check_measurable
from duo.engine.contexts import draft_context, head_context, target_context, warm_up
from duo.engine.cores import plan_threads
from duo.engine.decoder import Decoder
from duo.engine.translated import MORE_TOKENS, Translation
from duo.errors import ModelError, PromptError
from duo.llama.context import Context
from duo.llama.fingerprint import vocabulary_difference
from duo.llama.gguf_header import n_mtp
from duo.llama.heads import check_pair
from duo.llama.model import Model
from duo.speculation.acceptance import N_DEPTHS
from duo.speculation.modes import ALL, Schedule
from duo.speculation.policy import Policy, StepCost
from duo.speculation.prompt_lookup import PromptLookup
from duo.speculation.types import Origin, Proposal, common_prefix

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


@dataclass(frozen=True, slots=True)
class LookupFigures:
    """What the text as its own draft would bring; `target_s` are the times of the target from one token on."""

    target_s: list[float]
    rate: float  # tokens/s
    n_verified: int
    n_accepted: int


class DraftComparison:
    """Times a target, which writes texts, and then any number of drafts. One thread calls it, except lookup().

    Raises ModelError if the target cannot verify candidates, PromptError for a prompt that is empty or too long,
    MemoryLimitError or UsageError; and, as measure_draft(), Stopped once `stop` is set, DecodeError and
    MeasurementError. closing() frees the target's context.
    """

    def __init__(
        self,
        target: Model,
        config: EngineConfig,
        prompts: Sequence[Sequence[int]],
        n_text: int,
        show: Progress,
        stop: threading.Event,
        note: Callable[[str], None],
    ) -> None:
        """`n_text`: tokens to generate after each of the prompts. `note` gets lines for people."""
        self._target, self._config, self._stop, self._note = target, config, stop, note
        self._n_ctx, self._n_tokens = _context_size(target, prompts, n_text), n_text * len(prompts)
        threads = plan_threads(config, drafting=False, target_on=target.places)
        self._n_threads = n = threads.target
        self._context = target_context(target, config, threads, self._n_ctx, AUTO_DRAFT)
        n_rollback = self._context.n_rollback
        self.n_max = AUTO_DRAFT if n_rollback is None else min(AUTO_DRAFT, n_rollback)  # candidates to verify at once
        try:
            if target.is_recurrent or not self._context.probe_rollback():
                raise ModelError(f"{target.path}: it cannot roll back its cache, so nothing can be drafted for it")
            if config.warmup:
                warm_up(self._context, target, SIZES[-1], SIZES[-1])
            meter, (expected_s, limit_s) = self._meter(None, show, n, 1)
            each = f"about {expected_s} s for the target and as much for each draft, at most {limit_s} s each"
            note(f"measuring takes {each}")
            self._measured = meter.measure([n])
            self.texts: list[Text] = [(p, meter.write(p, n_text, n, target.is_end)) for p in prompts]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the target's context."""
        self._context.close()

    def measure_draft(self, draft: Model, show: Progress) -> DraftFigures:
        """Time a draft, alone and concurrently; let it predict the texts. Raises DuoError: see the class."""
        if not draft.head_kind and not draft.can_roll_back:
            raise ModelError(f"{draft.path}: it cannot roll back its cache")
        check_measurable(draft)
        target, n_target = self._target, self._n_threads
        threads = plan_threads(self._config, drafting=True, target_on=target.places, draft_on=draft.places)
        if draft.head_kind:
            check_pair(target, draft)
        differs = not draft.head_kind and vocabulary_difference(target, draft) is not None
        translation = Translation(target, draft) if differs else None
        context: Context | None
        if draft.head_kind:
            context = head_context(draft, self._config, threads, self._context)
        else:
            context = draft_context(draft, self._config, threads, math.ceil(MORE_TOKENS * self._n_ctx), n_branches=0)
        assert context is not None
        with closing(context):
            n_groups = len(_BOTH) / len(SIZES)
            meter, _ = self._meter(context, show, max(n_target, sum(threads.concurrent)), n_groups)
            found = meter.measure([], threads.draft, [threads.concurrent], _BOTH)
            found.target = self._measured.target
            if draft.head_kind:
                found.n_depths = N_DEPTHS
                is_apart = threads.separate_devices and n_mtp(draft.header) == 1
                found.schedules = ALL if is_apart else (Schedule.SYNC, Schedule.OFF)
            found.add_scores([meter.score(*text, found.fastest_draft, translation) for text in self.texts])
        policy = found.policy(n_target, threads.concurrent, self.n_max)
        return DraftFigures(translation is not None, policy, found.acceptance, len(found.scores))

    def lookup(self) -> LookupFigures:
        """What the lookup of candidates would bring."""
        return replay_lookup(self._measured.target[self._n_threads], self.texts, self.n_max)

    def _meter(
        self, draft: Decoder | None, show: Progress, n_threads: int, n_groups: float
    ) -> tuple[Meter, tuple[int, int]]:
        """A meter, and what it announces."""
        meter = Meter(self._context, draft, show, self._stop, self._note)
        return meter, meter.announce(n_threads, n_groups, self._n_tokens, self._target.places)


def replay_lookup(times: dict[int, float], texts: Sequence[Text], n_max: int) -> LookupFigures:
    """What the lookup would bring in the `texts` that the target wrote, at its `times` by tokens in a batch."""
    policy = Policy(n_max, 2 * n_max, (Schedule.OFF,))
    for n, seconds in times.items():
        policy.alone.add_target(n, seconds)
    target_s = policy.alone.curve(SIZES[-1])
    total_s, n_tokens, n_verified, n_accepted = 0.0, 0, 0, 0
    for prompt, text in texts:
        policy.begin(len(prompt), mode="greedy")
        lookup, done = PromptLookup(), 1  # the first token belongs to the prefill
        lookup.begin([*prompt, *text[:1]])
        while done < len(text):
            found = lookup.propose(n_max)
            decision = policy.decide(len(text) - done, Proposal(), found)
            candidates = [candidate.token for candidate in found.candidates[: decision.n_verify]]
            n_right = common_prefix(candidates, text[done:])
            seconds = target_s[len(candidates)]
            policy.learn_step(n_right + 1, StepCost(len(candidates), seconds, seconds, Origin.LOOKUP))
            lookup.extend(text[done : done + n_right + 1])
            done += n_right + 1
            total_s += seconds
            n_verified, n_accepted = n_verified + len(candidates), n_accepted + n_right
        n_tokens += done - 1
    return LookupFigures(target_s, n_tokens / total_s if n_tokens else 1 / target_s[0], n_verified, n_accepted)


def _context_size(target: Model, prompts: Sequence[Sequence[int]], n_text: int) -> int:
    """Tokens of a context for the longest prompt. Raises PromptError."""
    if not all(prompts):
        raise PromptError("a prompt has no tokens")
    needed = max(map(len, prompts)) + n_text
    if needed > target.n_ctx_train:
        raise PromptError(f"a prompt and {n_text} more tokens exceed the {target.n_ctx_train} of the model's context")
    return min(max(_LEAST_CTX, needed), target.n_ctx_train)
