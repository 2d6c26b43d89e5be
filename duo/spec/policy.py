"""Policy: how many candidates to verify, whether to wait for one more, how far to draft ahead, and in which schedule.

Everything it needs is measured while running: T(n), the target's time for a batch of n tokens; t_d, the draft's time
for one; and a(c), the probability that a candidate of confidence c is accepted. From these follows λ, the best rate
that can be kept up (duo/spec/forecast.py). A batch of k candidates of which the first i survive with probability
s_i = a(c_1)···a(c_i) is worth

    value(k, wait) = 1 + Σ s_i - λ · (wait + T(k+1)) + s_{k+1} · worth(lead)

tokens: what it brings, less what could be had in the same time, plus what the lead is worth that the draft keeps if all
of them and the target's own next token are as it guessed. The k and the wait that make it largest also make the
long-run rate largest.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from duo.spec import forecast
from duo.spec.costs import KEPT, Calibration, CostModel, Mean, Time, positive
from duo.spec.forecast import Forecast
from duo.spec.schedule import ALL, Chooser, Schedule

# The draft stops where its guesses survive less often than this: guessing on would only slow the target down, and
# the draft could start again sooner after a rejection when it is idle. See benchmarks/NOTES.md.
MIN_SURVIVAL = 0.05
_HOPELESS = 0.02  # survival of a candidate that nobody waits for
_EXCELLENT = 0.95  # acceptance: where even this would not help, the draft is not asked how it would guess
_MANY = 16  # tokens in a batch that tell what one of many costs
_LEAST_BIAS, _LEAST_BIAS_REMOTE = 0.5, 0.02  # of a forecast: a remote draft may report false times
_FIRST_ALONE = 2  # steps of the target alone before a remote draft is asked
_SILENCE = 16  # tokens without a guess until the draft is asked how it would guess


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step of the target took, in seconds: the decode alone, and all with waits and drafting in turns."""

    n_candidates: int
    decode_s: float
    total_s: float


class Lookahead(NamedTuple):
    """How far a draft may go on: a rule that can be followed without the policy, on the draft's thread."""

    n_ahead: int = 0  # most tokens ahead of the accepted ones
    least: float = 0.0  # survival of the pending candidates below which it stops
    accepted: Sequence[float] = ()  # a(c) in each bin of Calibration

    def allows(self, confidences: Sequence[float]) -> bool:
        """Whether the draft may go on after pending candidates of these `confidences`."""
        if len(confidences) >= self.n_ahead:
            return False
        survival = 1.0
        for confidence in confidences:
            survival *= self.accepted[bisect_right(Calibration.EDGES, confidence)]
        return survival >= self.least


@dataclass(frozen=True, slots=True)
class Decision:
    """Verify `n_verify` candidates now; or, if `wait_s` is not None, wait so long for another and decide again."""

    n_verify: int
    wait_s: float | None = None


REJECTION = "rejection"  # the mode of sampling in which candidates are considered from left to right


class Policy:
    """Decides for one draft, text after text, and learns from each. The target's thread alone calls it."""

    PROBE_TOKENS = 48  # most that a draft reads at once to see how it would guess

    def __init__(
        self,
        n_max: int,
        n_ahead: int,
        schedules: Sequence[Schedule] = ALL,
        draft_threads: Sequence[int] = (1,),
        *,
        remote: bool = False,
    ) -> None:
        """At most `n_max` candidates in a batch; the draft at most `n_ahead` tokens ahead.

        It chooses among `schedules`, and among `draft_threads` for a draft that takes turns with the target.
        `remote`: the draft computes on another machine, so it takes no turns and its prefill costs the target nothing.
        """
        if remote:
            schedules = [schedule for schedule in schedules if schedule is not Schedule.SYNC] or [Schedule.ASYNC]
        self._remote = remote
        self._least_bias = _LEAST_BIAS_REMOTE if remote else _LEAST_BIAS
        self.n_max = n_max
        self.n_ahead = n_ahead
        self.alone = CostModel()
        self.beside = CostModel(self.alone)
        self.calibration = Calibration()  # of the present mode of sampling
        self._calibrations: dict[str, Calibration] = {}
        self._schedules = tuple(schedules) if n_max else (Schedule.OFF,)
        self._draft_threads = tuple(draft_threads)
        self._mode = ""
        self._start_text()
        self._forecast = Forecast(0.0)
        self._bias = {schedule: Mean(value=1.0, n=4) for schedule in Schedule}
        self._read = Time()  # per token of a long batch of the draft
        self._latency = Time()  # of a remote draft

    def _start_text(self) -> None:
        """What holds for one text only."""
        self.chooser = Chooser(self._schedules)
        # Whether the draft would be used if it were better, and can be asked how it would guess.
        self._worth_asking = self._schedules != (Schedule.OFF,)
        self._n_text = 0
        self._unread = 0  # tokens of the text that the draft has not read
        self._unscored = 0  # tokens written since the draft's guesses were last compared with the text
        self._scored = False  # whether that was in this step
        self._told = False  # whether it ever was
        self.scores: deque[tuple[float, bool]] = deque(maxlen=4096)  # as learn_scores() was told them
        self._window = (0, 0.0)  # tokens and seconds since the forecast was last compared with what came

    @property
    def schedule(self) -> Schedule:
        """The schedule to follow now.

        With a remote draft the target is first measured alone: the other machine may be the same one.
        """
        if self._remote and Schedule.OFF in self.chooser.allowed and self.alone.n_measured(1) < _FIRST_ALONE:
            return Schedule.OFF
        return self.chooser.now

    @property
    def does_without(self) -> bool:
        """Whether the target has been found to be faster without the draft."""
        return self.chooser.now is Schedule.OFF

    @property
    def costs(self) -> CostModel:
        """What decodes cost in the present schedule."""
        return self.beside if self.schedule is Schedule.ASYNC else self.alone

    @property
    def latency_s(self) -> float:
        """Seconds that decisions and guesses take on their way to a remote draft and back."""
        return self._latency.value

    @property
    def rate(self) -> float:
        """λ: the best rate that can be kept up in the present schedule, tokens per second; 0 while it is not known."""
        return self._forecast.rate

    @property
    def n_draft_threads(self) -> int:
        """Threads for a draft that takes turns with the target."""
        return self.alone.draft_threads(self._draft_threads)

    @property
    def in_order(self) -> bool:
        """Whether nothing that comes after a candidate may keep it from being verified."""
        return self._mode == REJECTION

    def begin(self, n_prompt: int, n_room: int | None = None, mode: str = "") -> None:
        """A text begins, with a prompt that the draft has not read, and room for `n_room` tokens (None: any number).

        `mode` is how tokens are chosen: what is learned of a draft in one says nothing of another.
        """
        if mode != self._mode:
            self._calibrations[self._mode] = self.calibration
            self.calibration = self._calibrations.pop(mode, Calibration())
            self._mode = mode
        self._start_text()
        self._n_text = self._unread = n_prompt
        self.chooser.begin(self.rates(), self._entry_s(), n_room)
        self._foresee()

    def forecasts(self, acceptance: float | None = None) -> dict[Schedule, Forecast]:
        """What each schedule can reach, by default with the present acceptance; empty while the costs are not known."""
        n, acceptance = self.n_max + 1, self.calibration.mean if acceptance is None else acceptance
        alone, beside = self.alone.curve(n), self.beside.curve(n)
        if not alone[0] or (self.n_max and not self.beside.draft_s):
            return {}
        found = {Schedule.OFF: forecast.alone(alone)}
        if self.n_max:
            found[Schedule.SYNC] = forecast.taking_turns(alone, self.alone.draft_s, acceptance)
            found[Schedule.ASYNC] = forecast.overlapped(
                beside, self.beside.draft_s, acceptance, self.n_ahead, self.latency_s
            )
        return found

    def rates(self) -> dict[Schedule, float]:
        """The forecasts in tokens/s, corrected by how they have come true so far."""
        return {schedule: found.rate * self._bias[schedule].value for schedule, found in self.forecasts().items()}

    def decide(self, confidences: Sequence[float], n_room: int, next_s: float) -> Decision:
        """What to do with ready candidates of these `confidences`.

        The text has room for `n_room` tokens. The next candidate is expected in `next_s` seconds (infinity: never).
        """
        n_max = min(self.n_max, n_room - 1)  # the target adds a token of its own to what it accepts
        rate, draft_s, mean = self.rate, self.costs.draft_s, self.calibration.mean
        if self.schedule is Schedule.OFF or not rate or n_max <= 0:
            return Decision(0)
        if self.in_order:
            return self._decide_in_order(confidences, n_max, next_s)
        n_ready, worth_of, target_s = len(confidences), self._forecast.worth_of, self.costs.target_s
        # The draft's lead, the part of a token that it has in the making included.
        lead = n_ready + (1 - next_s / draft_s if draft_s and next_s < math.inf else 0.0)
        chances = [*map(self.calibration.probability, confidences[: n_max + 1]), *[mean] * (n_max + 1 - n_ready)]
        survival, expected, wait_s = 1.0, 0.0, 0.0
        best, best_value = 0, -math.inf
        for k in range(n_max + 1):
            expected += survival
            if k > n_ready:
                wait_s = next_s + (k - n_ready - 1) * draft_s
                if wait_s == math.inf:
                    break
            seconds = wait_s + target_s(k + 1)
            survival *= chances[k]
            if survival < _HOPELESS and k > n_ready:
                break
            lead_then = lead - k - 1 + (seconds / draft_s if draft_s and next_s < math.inf else 0.0)
            value = expected - rate * seconds + survival * worth_of(min(lead_then, self.n_ahead))
            if value > best_value:
                best, best_value = k, value
        return Decision(best) if best <= n_ready else Decision(0, next_s + draft_s)

    def _decide_in_order(self, confidences: Sequence[float], n_max: int, next_s: float) -> Decision:
        """Take one candidate after the other, as long as it or those that may follow it are worth their time.

        The confidences of later ones depend on the token that an earlier one is: none of them is looked at before the
        earlier one is taken, nor is how many there are. Those to come are taken to be as good as the mean.
        """
        target_s, rate, mean = self.costs.target_s, self.rate, self.calibration.mean
        k, survival, expected = 0, 1.0, 1.0

        def best_after(chance: float, first_s: float, each_s: float) -> float:
            """The best value of a batch longer than `k`, the next candidate of which is accepted with `chance`."""
            best, alive, tokens = -math.inf, survival, expected
            for n in range(k + 1, n_max + 1):
                alive *= chance if n == k + 1 else mean
                tokens += alive
                best = max(best, tokens - rate * (first_s + (n - k - 1) * each_s + target_s(n + 1)))
            return best

        for confidence in confidences[:n_max]:
            chance = self.calibration.probability(confidence)
            if best_after(chance, 0.0, 0.0) <= expected - rate * target_s(k + 1):
                return Decision(k)
            survival *= chance
            expected += survival
            k += 1
        if next_s < math.inf and best_after(mean, next_s, self.costs.draft_s) > expected - rate * target_s(k + 1):
            return Decision(0, next_s + self.costs.draft_s)
        return Decision(k)

    def may_draft(self, confidences: Sequence[float]) -> bool:
        """Whether the draft should guess on, beside the target, after pending candidates of these `confidences`."""
        return self.lookahead().allows(confidences)

    def lookahead(self) -> Lookahead:
        """How far the draft may go on, by what is known now."""
        if self.schedule is not Schedule.ASYNC:
            return Lookahead()
        least = min(MIN_SURVIVAL, self.rate * self.costs.draft_s)
        return Lookahead(self.n_ahead, least, self.calibration.probabilities())

    def probe_due(self) -> bool:
        """Whether the draft, which has not guessed for a while, should read the text to see how it would."""
        if self._remote or not self._worth_asking:
            return False
        if self.schedule is Schedule.ASYNC or self._unscored < _SILENCE:
            return False
        return min(self._unread, self.PROBE_TOKENS) * self._read_s <= self.chooser.budget_s

    def learn_step(self, n_tokens: int, cost: StepCost) -> None:
        """The target wrote `n_tokens` at this cost."""
        self.costs.add_target(cost.n_candidates + 1, cost.decode_s)
        self._n_text += n_tokens
        self._unread += n_tokens
        self._unscored = 0 if self._scored else self._unscored + n_tokens
        self._scored = False
        self._window = (self._window[0] + n_tokens, self._window[1] + cost.total_s)
        review = self.chooser.step(n_tokens, cost.total_s)
        if review or not self.rate:
            self._review()

    def learn_draft(self, n_tokens: int, seconds: float) -> None:
        """The draft guessed a token, for which it decoded `n_tokens` at once."""
        self._unread = 0
        if n_tokens >= _MANY:
            self._read.add(seconds / n_tokens)
        elif n_tokens == 1 and self.schedule is Schedule.ASYNC:
            self.beside.add_draft(seconds)
        elif n_tokens == 1:
            self.alone.add_draft(seconds, self.n_draft_threads)

    def learn_latency(self, seconds: float) -> None:
        """A decision went to a remote draft and a guess came back; `seconds` without the time to make it."""
        self._latency.add(max(seconds, 1e-6))

    def learn_probe(self, scores: Iterable[tuple[float, bool]], n_tokens: int, seconds: float, *, whole: bool) -> None:
        """The draft read `n_tokens`, all that it had not read if `whole`; these are its guesses. 0: it could not."""
        self.learn_scores(scores)
        if n_tokens >= _MANY:
            self._read.add(seconds / n_tokens)
        if n_tokens:
            self._unread = 0 if whole else self._n_text
        self._unscored = 0
        self.chooser.budget_s -= seconds

    def stop_drafting(self) -> None:
        """There is no draft any more."""
        self.chooser.give_up()
        self._worth_asking = False
        self._foresee()

    def learn_scores(self, scores: Iterable[tuple[float, bool]]) -> None:
        """Candidates of these confidences turned out right or wrong."""
        for confidence, accepted in scores:
            self.calibration.add(confidence, accepted)
            self.scores.append((confidence, accepted))
            self._scored = self._told = True

    def statistics(self) -> dict[str, Any]:
        """What was learned and decided, in JSON's types; times in ms."""
        return {
            "schedule": self.schedule.value,
            "changes": [
                {"tokens": change.n_tokens, "schedule": change.schedule.value, "reason": change.reason}
                for change in self.chooser.changes
            ],
            "rate": self.rate,
            "forecast_tokens_per_s": {schedule.value: rate for schedule, rate in self.rates().items()},
            "acceptance": self.calibration.mean,
            "target_ms": {name: costs.target_ms() for name, costs in self._conditions()},
            "draft_ms": {name: 1000 * costs.draft_s or None for name, costs in self._conditions()},
            "latency_ms": 1000 * self.latency_s or None,
            "curve_ms": {name: self._curve_ms(costs) for name, costs in self._conditions()},
        }

    def _curve_ms(self, costs: CostModel) -> list[float] | None:
        """T(1) to T(n_max + 1) in ms, inferred where they were not measured; None while nothing is known."""
        curve = costs.curve(self.n_max + 1)
        return [1000 * seconds for seconds in curve] if curve[0] else None

    def _conditions(self) -> list[tuple[str, CostModel]]:
        return [("alone", self.alone), ("beside", self.beside)]

    def state(self) -> dict[str, Any]:
        """What was learned, in JSON's types."""
        return {
            "alone": self.alone.state(),
            "beside": self.beside.state(),
            "acceptance": {
                mode: found.state()
                for mode, found in {**self._calibrations, self._mode: self.calibration}.items()
                if mode
            },
            "read_s": self._read.value,
            "latency_s": self._latency.value,
            "bias": {schedule.value: bias.value for schedule, bias in self._bias.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Begin with what an earlier run has learned. Raises KeyError, TypeError or ValueError if it is damaged."""
        self.alone.restore(state["alone"])
        self.beside.restore(state["beside"])
        for mode, found in state["acceptance"].items():
            self._calibrations[mode] = Calibration()
            self._calibrations[mode].restore(found)
        if self._mode in self._calibrations:
            self.calibration = self._calibrations.pop(self._mode)
        if state["read_s"]:
            self._read = Time(value=positive(state["read_s"]), n=KEPT)
        if state["latency_s"]:
            self._latency = Time(value=positive(state["latency_s"]), n=KEPT)
        for schedule in Schedule:
            bias = positive(state["bias"][schedule.value])
            self._bias[schedule] = Mean(value=min(max(bias, self._least_bias), 2.0), n=4)

    def restore_kept(self, state: Any) -> None:
        """The same with what a file has kept; nothing if it is damaged."""
        try:
            Policy(self.n_max, self.n_ahead).restore(state)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return
        self.restore(state)

    @property
    def _read_s(self) -> float:
        """Time for the draft to read one of many tokens; a guess until it has."""
        return self._read.value or self.alone.draft_s / 3

    def _entry_s(self) -> float:
        return 0.0 if self._remote else self._unread * self._read_s

    def _review(self) -> None:
        self._foresee()
        if not self.rate:
            return
        tokens, seconds = self._window
        if self.chooser.n_steps >= 2 * Chooser.REVIEW_STEPS and seconds:
            self._bias[self.schedule].add(min(max(tokens / seconds / self.rate, self._least_bias), 2.0))
        self._window = (0, 0.0)
        if rates := self.rates():
            best = self.forecasts(_EXCELLENT)
            gain = max(best[schedule].rate for schedule in self.chooser.allowed) / best[Schedule.OFF].rate
            self._worth_asking = gain > Chooser.MARGIN
            before = self.schedule
            self.chooser.review(rates, self._entry_s(), told=self._told)
            if self.schedule is not before:
                self._foresee()

    def _foresee(self) -> None:
        """Take up the forecast of the present schedule; that of the target alone while the draft is not known."""
        found = self.forecasts()
        first_s = self.costs.target_s(1)
        if found:
            self._forecast = found[self.schedule]
        elif first_s:
            self._forecast = Forecast(1 / first_s)
