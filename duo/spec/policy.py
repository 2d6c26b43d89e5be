"""Policy: how many candidates to verify, whether to wait for one more, how far to draft ahead, and in which schedule.

All inputs are measured while running: T(n), the target's time for a batch of n tokens; t_d, the draft's time per token;
a(c), the probability that a candidate of confidence c is accepted (duo/spec/costs.py). They determine λ, the best
sustainable rate (duo/spec/forecast.py), and λ determines the number of candidates (duo/spec/decision.py).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from duo.spec.budget import Budget
from duo.spec.constants import DEFAULT, PolicyConfig
from duo.spec.costs import Calibration, CostModel
from duo.spec.decision import best_batch, best_in_order, best_ready
from duo.spec.forecast import Forecast
from duo.spec.lookup import HOPELESS
from duo.spec.pair import PairModel
from duo.spec.policy_statistics import PolicyStatistics, policy_statistics
from duo.spec.schedule import ALL, Chooser, Schedule
from duo.spec.types import Origin, Proposal, common_prefix

REJECTION = "rejection"  # the mode of sampling that requires decisions in order


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a step of the target took: the decode alone, and in total with waits and sequential drafting."""

    n_candidates: int
    decode_s: float
    total_s: float
    source: Origin = Origin.DRAFT


class Lookahead(NamedTuple):
    """How far the draft may run ahead: a rule that the draft's thread applies without the policy."""

    n_ahead: int = 0  # maximum tokens ahead of the accepted ones
    least: float = 0.0  # survival of the pending candidates below which it pauses
    accepted: Sequence[float] = ()  # a(c) for each bin of Calibration
    n_branches: int = 0  # outcomes to prepare
    ranks: Sequence[float] = ()  # probability that instead of a wrong candidate comes its alternative of this rank

    def allows(self, confidences: Sequence[float]) -> bool:
        """Whether the draft may continue after pending candidates of these `confidences`."""
        if len(confidences) >= self.n_ahead:
            return False
        survival = 1.0
        for confidence in confidences:
            survival *= self.probability(confidence)
        return survival >= self.least

    def probability(self, confidence: float) -> float:
        """a(`confidence`)."""
        return self.accepted[bisect_right(Calibration.EDGES, confidence)]


_MUCH_LIKELIER = 9  # odds


def _weigh(drafted: list[float], found: list[float], n_agreed: int) -> None:
    """Adjust the chances of two sources whose first `n_agreed` tokens are the same: about wrong only if both are.

    Where they differ, what the lookup has `found` is dropped unless it is much likelier (benchmarks/NOTES.md).
    """
    for i in range(min(n_agreed, len(found))):
        drafted[i] = found[i] = 1 - (1 - drafted[i]) * (1 - found[i])
    if n_agreed < min(len(drafted), len(found)):
        ours, theirs = found[n_agreed], drafted[n_agreed]
        if ours * (1 - theirs) < _MUCH_LIKELIER * theirs * (1 - ours):
            del found[n_agreed:]


@dataclass(frozen=True, slots=True)
class Decision:
    """Verify `n_verify` candidates now or, if `wait_s` is not None, wait that long for another and decide again."""

    n_verify: int
    wait_s: float | None = None
    origin: Origin = Origin.DRAFT


class Policy(PairModel):
    """Decides for one draft, generation after generation, and learns from each. Only the target's thread calls it."""

    def __init__(
        self,
        n_max: int,
        n_ahead: int,
        schedules: Sequence[Schedule] = ALL,
        draft_threads: Sequence[int] = (1,),
        *,
        remote: bool = False,
        apart: bool = False,
        branches: int | None = 0,
        aborts: bool = True,
        config: PolicyConfig = DEFAULT,
    ) -> None:
        """At most `n_max` candidates in a batch and `n_ahead` drafted tokens awaiting verification.

        It chooses among `schedules`, and among `draft_threads` for schedule sync. `apart`: the draft has hardware of
        its own, so it costs the target nothing beside it, and a text starts with schedule async. `remote`: that is
        another machine, so sync is excluded, and there are no branches. `branches`, `aborts`: see PairModel.
        """
        branches = 0 if remote else branches
        super().__init__(
            n_max, n_ahead, remote=remote, apart=apart or remote, branches=branches, aborts=aborts, config=config
        )
        if remote:
            schedules = [schedule for schedule in schedules if schedule is not Schedule.SYNC] or [Schedule.ASYNC]
        self._remote, self._apart = remote, apart or remote
        self._schedules = tuple(schedules) if n_max else (Schedule.OFF,)
        self._draft_threads = tuple(draft_threads)
        self._forecast = Forecast(0.0)
        self._may_gain = True  # whether drafting may pay, by what is known
        self._unscored = 0  # tokens since a candidate was last scored
        self.chooser = Chooser(self._schedules, config, Schedule.ASYNC if self._apart else Schedule.OFF)
        self._lookup_budget = Budget(config, config.lookup)
        self._since_alone = 0  # tokens since T(1) was measured
        self._draft_s = Schedule.OFF, 0.0  # the draft's time in the last step, and its schedule
        self._start_text()

    def _start_text(self) -> None:
        """Reset what holds for one generation only."""
        # Whether a better draft would pay, and the draft can be probed.
        self._worth_asking = self._schedules != (Schedule.OFF,)
        self._n_text = self._n_prompt = 0
        self._unread = 0  # tokens of the text that the draft has not decoded
        self._scored = False  # whether a candidate was scored in this step
        self._has_news = True  # whether something was learned since the last review
        self._wanted: list[int] = []  # sizes of batches to measure
        self._n_probed = 0  # probes in this text
        self.scores: deque[tuple[float, bool]] = deque(maxlen=4096)  # as passed to learn_scores()
        self._window = (0, 0.0)  # tokens and seconds since the forecast was last compared with the measured rate
        self._recent = (0.0, 0.0)  # tokens and seconds of this text, the latest steps counting most
        self._n_found = 0  # tokens of this text that the lookup found

    @property
    def schedule(self) -> Schedule:
        """The schedule to follow now.

        With a remote draft the target is first measured alone: the "other" machine may be this one.
        """
        if self._remote and Schedule.OFF in self.chooser.allowed and self.alone.n_measured(1) < self.config.first_alone:
            return Schedule.OFF
        return self.chooser.now

    @property
    def prefers_target_alone(self) -> bool:
        """Whether the target was found to be faster without the draft."""
        return self.chooser.now is Schedule.OFF

    @property
    def costs(self) -> CostModel:
        """The cost of decodes in the current schedule."""
        return self.beside if self.schedule is Schedule.ASYNC else self.alone

    @property
    def rate(self) -> float:
        """λ: the best sustainable rate of the current schedule in tokens/s; 0 while unknown."""
        return self._forecast.rate

    @property
    def _value_of_time(self) -> float:
        """λ for decisions, in tokens/s: forecasts know nothing of the lookup, which may make the text faster."""
        tokens, seconds = self._recent
        return max(self.rate, tokens / seconds) if self._n_found and seconds else self.rate

    @property
    def n_draft_threads(self) -> int:
        """Threads for the draft in schedule sync."""
        return self.alone.draft_threads(self._draft_threads)

    @property
    def in_order(self) -> bool:
        """Whether a candidate must not be omitted because of one drafted after it."""
        return self._mode == REJECTION

    def use_cores(self, n_cores: int) -> None:
        """See PairModel. The schedule is reconsidered soon."""
        before = self.alone
        super().use_cores(n_cores)
        if self.alone is not before and self.rate:
            self.is_steady = self.is_steady and self._n_text == self._n_prompt
            self._window = (0, 0.0)  # was measured with the others
            self._has_news = True
            self._update_forecast()

    def begin(self, n_prompt: int, n_room: int | None = None, mode: str = "") -> None:
        """Start a generation after `n_prompt` tokens not decoded by the draft, with room for `n_room` (None: no limit).

        `mode` is the mode of sampling: acceptance is learned separately for each.
        """
        self._use_mode(mode)
        self.calibration.begin()
        self._start_text()
        self._n_text = self._unread = self._n_prompt = n_prompt
        is_first = not self.alone.target_s(1) or (self.n_max > 0 and not self.calibration.n_scored)
        self.chooser.begin(self._schedules, n_room, is_first=is_first)
        self._lookup_budget.begin(None, is_first=is_first)
        self.is_steady = True
        for costs in (costs for both in self._costs.values() for costs in both):
            costs.begin()
        self._review()

    def decide(self, n_room: int, drafted: Proposal, *others: Proposal) -> Decision:
        """What to do with the candidates `drafted` by the source that this policy is for, or with those of `others`.

        The step may add at most `n_room` tokens.
        """
        n_max = min(self.n_max, n_room - 1)  # the target adds a token of its own
        if not self.rate or n_max <= 0:
            return Decision(0)
        if self._needs_alone():
            return Decision(0)
        if n := self._n_to_measure(n_max):
            return Decision(n, origin=next((other.origin for other in others if len(other.guesses) >= n), Origin.ANY))
        adjusted = [chance for _, chance in self.calibration.chances(self.calibration.mean)]  # to this text
        chances = [adjusted[bisect_right(Calibration.EDGES, guess.confidence)] for guess in drafted.guesses]
        found = [(other, self._chances(other, n_max)) for other in others if other.guesses]
        # With rejection sampling, the choice between the sources must not depend on what was drawn.
        same = [0 if self.in_order else common_prefix(drafted.tokens, other.tokens) for other, _ in found]
        for (_, theirs), n_same in zip(found, same, strict=True):
            if not self.in_order:
                _weigh(chances, theirs, n_same)
        n, value = self._best_drafted(chances, n_max, drafted.next_s)
        best = Decision(n) if n <= len(chances) else Decision(0, drafted.next_s + self.costs.draft_s)
        for (other, theirs), n_same in zip(found, same, strict=True):
            if not theirs:
                continue
            curve = self.costs.curve(self.n_max + 1, self._lookup_doubt)
            n_found, found_value = best_ready(theirs, curve, self._value_of_time)
            if n > 0 and not chances and self.schedule is Schedule.SYNC and not self.in_order:
                value = max(value, self._value_of_asking(theirs, curve, drafted.next_s, value))
            if n_found > n_same and found_value > value:
                best, value = Decision(n_found, origin=other.origin), found_value
        return best

    def _best_drafted(self, chances: Sequence[float], n_max: int, next_s: float) -> tuple[int, float]:
        """How many of the draft's candidates to verify, and the value of that."""
        curve, rate = self.costs.curve(self.n_max + 1), self._value_of_time
        if self.schedule is Schedule.OFF:
            return 0, 1 - rate * curve[0]
        expected = self._forecast if rate == self.rate else replace(self._forecast, rate=rate)
        mean = self.calibration.mean
        if not self.in_order:
            n, value = best_batch(chances, mean, n_max, next_s, curve, self.costs.draft_s, expected)
            if self.schedule is Schedule.SYNC:
                n = self._best_in_turn(chances, n_max, next_s, curve, rate)
            return n, value
        n = best_in_order(chances, mean, n_max, next_s, curve, self.costs.draft_s, expected)
        if self._must_draft and not chances and next_s < math.inf:
            n = max(n, 1)
        # A comparison with other candidates must not depend on those that were drawn, nor on how many there are: so it
        # is made as if none had been drafted yet.
        draft_s = self.costs.draft_s
        return n, best_batch((), mean, n_max, draft_s or math.inf, curve, draft_s, expected)[1]

    def _best_in_turn(
        self, chances: Sequence[float], n_max: int, next_s: float, curve: Sequence[float], rate: float
    ) -> int:
        """How many candidates to verify in schedule sync; one more than there are: draft it."""
        n = len(chances)
        if n < n_max and next_s < math.inf and self._forecast.goes_on(n, math.prod(chances), rate):
            return n + 1
        k = best_ready(chances[:n_max], curve, rate)[0]
        return max(k, min(n, 1)) if self._must_draft else k

    def _needs_alone(self) -> bool:
        """Whether to measure T(1) in schedule sync, whose gain rests on it: the less that is, the more often."""
        if self.schedule is not Schedule.SYNC:
            return False
        least, times = 1 + self.config.least_gain, self._value_of_time * self.alone.target_s(1)
        is_due = 1 - 1 / max(least, times) <= self.config.alone_share * self._since_alone
        return self.alone.is_doubted or (is_due and not self._must_draft)

    @property
    def _must_draft(self) -> bool:
        """Whether drafting was asked for: then schedule sync drafts even where that does not pay."""
        return self.schedule is Schedule.SYNC and Schedule.OFF not in self.chooser.allowed

    def _n_to_measure(self, n_max: int) -> int:
        """How many arbitrary candidates to verify now, because T(n) decides whether drafting pays; usually 0."""
        if self.schedule is not Schedule.OFF or not self._wanted or not self.alone.is_fresh(1):
            return 0
        if self.alone.n_measured(1) < self.config.first_alone:
            return 0
        cheap = self.config.sizes[1]
        for n in (self._wanted[0], *([] if self.alone.is_fresh(cheap) else [cheap])):
            cost_s = self.alone.curve(n, 0.0 if self.alone.n_measured(n) else 1.0)[-1] - self.alone.target_s(1)
            if n <= n_max + 1 and cost_s <= self.chooser.budget.credit_s:
                return n - 1
        return 0

    def _wanted_sizes(self) -> list[int]:
        """The batches to measure: a typical one, and a small one, which shows whether an earlier run's times hold."""
        first, second = self.config.sizes
        if self.schedule is not Schedule.OFF:
            return []
        if self.alone.n_measured(first) == 1 and self.alone.is_fresh(first):
            return [first]  # again: something may have interrupted that one
        found = second if self.alone.n_measured(first) else first
        return [found] if self._worth_asking and not self.alone.is_fresh(found) else []

    @property
    def _lookup_doubt(self) -> float:
        """Standard deviations by which chances and times must be better for the lookup: without credit, one."""
        return 1.0 if self._lookup_budget.credit_s < 0 else 0.0

    def _chances(self, found: Proposal, n_max: int) -> list[float]:
        """The chances of candidates that cost no time, as many as may be verified: none after a hopeless one."""
        n, doubt = min(n_max, self.costs.n_affordable(self._lookup_budget.credit_s) - 1), self._lookup_doubt
        if not doubt:
            return [chance for chance, _ in found.chances[:n]]
        chances, survival = list[float](), 1.0
        for chance, seen in found.chances[:n]:
            if survival <= HOPELESS:
                break
            chances.append(max(0.0, chance - doubt * math.sqrt(chance * (1 - chance) / seen)))
            survival *= chances[-1]
        return chances

    def _value_of_asking(self, found: Sequence[float], curve: Sequence[float], next_s: float, drafted: float) -> float:
        """The value of asking the draft for a token before those that the lookup has `found` are verified.

        It predicts the first of them about as often as that is right. Otherwise there is what is `drafted`: its value.
        """
        rate, mean = self._value_of_time, self.calibration.mean
        agreed = [1 - (1 - found[0]) * (1 - mean), *found[1:]]
        return found[0] * (best_ready(agreed, curve, rate)[1] - rate * next_s) + (1 - found[0]) * drafted

    def may_draft(self, confidences: Sequence[float]) -> bool:
        """Whether the draft should continue concurrently after pending candidates of these `confidences`."""
        return self.lookahead().allows(confidences)

    def lookahead(self) -> Lookahead:
        """How far the draft may run ahead, given what is known now."""
        if self.schedule is not Schedule.ASYNC:
            return Lookahead()
        least = min(self.config.least_survival, self.rate * self.costs.draft_s)
        return Lookahead(
            self.n_ahead, least, self.calibration.probabilities(), self._n_branches, self.calibration.ranks
        )

    def probe_size(self) -> int:
        """How many tokens of the text an idle draft should decode to see which it would have drafted; usually 0.

        That is all that it has not decoded, or the last ones.
        """
        if self._remote or not self._worth_asking or self.schedule is Schedule.ASYNC or not self.alone.target_s(1):
            return 0
        if Schedule.OFF not in self.chooser.allowed:
            return 0
        silence = self.config.silence if self._may_gain or not self._n_probed else self.config.long_silence
        least = self.config.probe_tokens // 2
        if self._unscored < silence or self._n_text - self._n_prompt < least:
            return 0
        n_affordable = int(self.chooser.budget.credit_s / (self.read_s or self.config.read * self.alone.target_s(1)))
        n = min(self._unread, self._n_text if n_affordable >= self._unread else self.config.probe_tokens, n_affordable)
        return n if n >= least else 0

    def learn_step(self, n_tokens: int, cost: StepCost) -> None:
        """The target added `n_tokens` at this cost."""
        self.costs.add_target(cost.n_candidates + 1, cost.decode_s)
        self._n_text += n_tokens
        self._unread += n_tokens
        self._unscored = 0 if self._scored else self._unscored + n_tokens
        self._scored = False
        alone_s = self.alone.target_s(1)
        drafted, found = cost.source is Origin.DRAFT, cost.source is Origin.LOOKUP
        self._n_found += n_tokens - 1 if found else 0
        is_alone = not cost.n_candidates and self.schedule is not Schedule.ASYNC
        self._since_alone = 0 if is_alone else self._since_alone + n_tokens
        kept = self.config.rate_memory
        self._recent = (kept * self._recent[0] + n_tokens, kept * self._recent[1] + cost.total_s)
        if drafted:
            self._window = (self._window[0] + n_tokens, self._window[1] + cost.total_s)
        is_off = self.schedule is Schedule.OFF or not self.rate
        each_s = alone_s if is_off else 1 / (self.rate * self._bias[self.schedule].value)  # without the lookup
        self._lookup_budget.step(cost.total_s, n_tokens * each_s - cost.total_s if found else 0.0, alone_s)
        # Schedule sync without candidates is the target alone.
        compares = drafted and (self.schedule is not Schedule.SYNC or self._forecast.n_verify > 0)
        is_due = self.chooser.step(n_tokens, cost.total_s, alone_s, drafted=compares)
        if self.costs.was_wrong:
            self.chooser.budget.begin_again()
        if cost.source is Origin.ANY:
            self.chooser.budget.spend(max(0.0, self.costs.target_s(cost.n_candidates + 1) - n_tokens * alone_s))
            is_due = self._has_news = True
        # A forecast takes a millisecond. With the target alone it changes only with what is known about the draft.
        is_first = self.schedule is Schedule.OFF and self.alone.n_measured(1) == self.config.first_alone
        before, self._draft_s = self._draft_s, (self.schedule, self.costs.draft_s)
        stalls = before[0] is self.schedule and self._draft_s[1] > self.config.most_slower * before[1] > 0
        is_due = is_due or stalls
        if not self.rate or is_first or (is_due and (self._has_news or self.schedule is not Schedule.OFF)):
            self._review()

    def learn_draft(self, n_tokens: int, seconds: float, n_sequences: int = 1) -> None:
        """The draft made a token, for which it decoded `n_tokens` at once, or one in each of `n_sequences`."""
        self._unread = 0
        if n_sequences > 1:
            self.beside.add_draft(seconds, n_sequences=n_sequences)
        elif n_tokens >= self.config.read_least:
            self._read.add(seconds / n_tokens)
        elif n_tokens == 1 and self.schedule is Schedule.ASYNC:
            self.beside.add_draft(seconds)
        elif n_tokens == 1:
            self.alone.add_draft(seconds, self.n_draft_threads)
        elif n_tokens == 2 and self.schedule is Schedule.SYNC:
            self.alone.add_pair(seconds)
            self.alone.guess_s = seconds / self.config.pair[1]  # one that is always right never reads one token alone

    def learn_scores(self, scores: Iterable[tuple[float, bool]]) -> None:
        """Candidates of these confidences would have been accepted or not."""
        for confidence, accepted in scores:
            self.calibration.add(confidence, accepted)
            self.scores.append((confidence, accepted))
            self._scored = self._has_news = True

    def learn_probe(self, scores: Sequence[tuple[float, bool]], n_tokens: int, seconds: float, *, whole: bool) -> None:
        """A probe decoded `n_tokens` (0: it was not possible); `whole`: the draft has now decoded all of the text.

        Otherwise it knew too little of the text to be right as often as it will be. `seconds` is 0 if the time is not
        representative.
        """
        if n := len(scores):
            share = sum(accepted for _, accepted in scores) / n
            if not whole:
                share = min(share / self.config.without_context, self.config.excellent)
            if self.calibration.doubt(share, n):
                self.chooser.budget.begin_again()
            if whole:
                self.learn_scores(scores)
            else:
                self.calibration.add_share(share, n)
        self._n_probed += 1
        if n_tokens >= self.config.read_least and seconds:
            self._read.add(seconds / n_tokens)
            self.alone.guess_s = self.alone.guess_s or self.read_s / self.config.read
        if n_tokens:
            self._unread = 0 if whole else self._n_text
        self._unscored = 0
        self.chooser.budget.spend(seconds)
        self._review()

    def restore_kept(self, state: Any) -> bool:
        """restore() from a file; False, and nothing is restored, if `state` is damaged."""
        try:
            PairModel(self.n_max, self.n_ahead).restore(state)
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        self.restore(state)
        return True

    def stop_drafting(self) -> None:
        """The draft is not available for the rest of this generation."""
        self.chooser.give_up()
        self._worth_asking, self._wanted = False, []
        self._update_forecast()

    def statistics(self) -> PolicyStatistics:
        """What was learned and decided."""
        most_rate, found = self.most_rate(), self.forecasts() if self.scores else {}
        return policy_statistics(
            self,
            self.schedule,
            self._schedules,
            self.chooser.changes,
            self.rate,
            {schedule: min(rate, most_rate) for schedule, rate in self.rates().items()},
            max((found[schedule].rate for schedule in self.chooser.allowed if schedule in found), default=None),
            self.lookahead().n_branches,
        )

    def _entry_s(self) -> float:
        """Seconds of the target's time that the draft needs before its first candidate."""
        return 0.0 if self._apart else self._unread * self.read_s

    def _review(self) -> None:
        """Compare the forecast with the measured rate, then reconsider the schedule."""
        self._has_news = False
        found = self._update_forecast()
        tokens, seconds = self._window
        if found and self.chooser.is_settled and seconds:
            self._learn_bias(self.schedule, tokens / seconds / self.rate)
        self._window = (0, 0.0)
        if not found or len(self.chooser.allowed) < 2:
            return
        outlooks, untried = self.outlooks(found), self._untried()
        self._may_gain = self.chooser.may_gain(outlooks)
        if self.schedule is Schedule.OFF:
            self._worth_asking = (self.most_gain() or 0.0) > 1 + self.config.least_gain
        # Entering must pay on those tokens alone that the lookup does not find.
        n_text = max(1, self._n_text - self._n_prompt)
        entry_s = self._entry_s() * n_text / max(1, n_text - self._n_found)
        self._wanted = self._wanted_sizes()
        is_new = self._wanted and not self.alone.n_measured(self._wanted[0])
        if not is_new or (self.alone.n_measured(1) >= self.config.first_alone and not self._n_to_measure(self.n_max)):
            self.chooser.review(outlooks, entry_s, untried)
        self._forecast = found[self.schedule]

    def _untried(self) -> set[Schedule]:
        """The schedules whose forecasts rest on what is assumed."""
        found = {Schedule.ASYNC} if not self.beside.is_measured and not self._apart else set[Schedule]()
        return found if self.calibration.n_scored >= self.config.kept_scores else {Schedule.SYNC, Schedule.ASYNC}

    def _update_forecast(self) -> dict[Schedule, Forecast]:
        """Use the forecast of the current schedule; that of the target alone while the draft's costs are unknown."""
        self.choose_branches(allowed=Schedule.ASYNC in self.chooser.allowed and not self.in_order)
        found, first_s = self.forecasts(), self.costs.target_s(1)
        if found:
            self._forecast = found[self.schedule]
        elif first_s:
            self._forecast = Forecast(1 / first_s)
        if self._must_draft and not self._forecast.n_verify:
            self._forecast = replace(self._forecast, n_verify=1, n_wait=1, stop=(0.0,))
        return found
