"""Learner: what a policy learns from each step, what it measures on purpose, and when it changes the schedule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from duo.speculation.constants import DEFAULT
from duo.speculation.costs import CostModel
from duo.speculation.forecast import Forecast
from duo.speculation.pair import PairModel
from duo.speculation.schedule import ASYNC, OFF, SYNC, Budget, Chooser, RateEstimate, Schedule
from duo.speculation.types import Origin, StepCost

REJECTION = "rejection"  # the mode of sampling that requires decisions in order


class Learner(PairModel):
    """Follows a schedule, learns from each step of a text, and reconsiders the schedule now and then.

    While the draft is idle, some decodes carry arbitrary candidates, so that T(n) is measured, and the draft is
    *probed*: scored on what the target has written. In schedule sync T(1) is measured. A budget pays for all of this.
    """

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        super().__post_init__()
        self.chooser = Chooser(self.schedules, ASYNC if self.separate_devices else OFF)
        self._forecast = Forecast(0.0)
        self._lookup_budget = Budget(DEFAULT.lookup, DEFAULT.lookup)
        self._reviewed = OFF, 0.0  # the schedule that the last review chose, and the draft's time in it then
        self._n_jumps = 0  # steps in succession that seem to have taken far too long
        self._since_alone = 0  # tokens since T(1) was measured
        self._may_gain = True  # whether drafting may pay, by what is known
        self.gain: float | None = None  # the best forecast over the target alone; None: nothing is known of the draft
        self._start_text(0)

    def _start_text(self, n_prompt: int) -> None:
        """Reset what holds for one generation only."""
        self._is_worthwhile = self.schedules != (OFF,)  # whether a better draft would pay, and there is one
        self._in_order = self._mode == REJECTION  # a candidate must not be omitted because of one drafted after it
        self._n_prompt = self._n_unread = n_prompt  # tokens of the text that the draft has not decoded
        self._size = 0  # of batches to measure
        self._was_probed = False
        self._scored = self._was_scored = False  # whether a candidate was scored in this step, and in this text
        self._has_news = True  # whether something was learned since the last review
        self._window = (0, 0.0)  # tokens and seconds since the forecast was last compared with the measured rate
        self._recent = (0.0, 0.0)  # tokens and seconds of this text, the latest steps counting most
        self._n_found = 0  # tokens of this text that the lookup found,
        self._n_found_since = 0  # since a step of another source,
        self._n_unread_found = 0  # and since the draft decoded something

    @property
    def schedule(self) -> Schedule:
        """The schedule to follow now. A target is first measured without a remote draft: it may be on this machine."""
        if self.remote and OFF in self.chooser.allowed and self.alone.target(1).n < DEFAULT.first_alone:
            return OFF
        return self.chooser.now

    @property
    def prefers_target_alone(self) -> bool:
        """Whether the target was found to be faster without the draft."""
        return self.chooser.now is OFF

    @property
    def costs(self) -> CostModel:
        """The cost of decodes in the current schedule."""
        return self.concurrent if self.schedule is ASYNC else self.alone

    @property
    def rate(self) -> float:
        """λ: the best sustainable rate of the current schedule in tokens/s; 0 while unknown."""
        return self._forecast.rate

    @property
    def n_draft_threads(self) -> int:
        """Threads for the draft in schedule sync: as many as may be the fastest (Auer et al. 2002)."""
        times = self.alone.draft_times
        return min(self.draft_threads, key=lambda n: times[n].estimate(-1.0) if n in times else 0.0)

    @property
    def next_draft_s(self) -> float:
        """Time for the next draft token in schedule sync, for which the draft reads what the lookup has found."""
        return self.costs.draft_s + self._n_unread_found * self.read_s

    @property
    def _must_draft(self) -> bool:
        """Whether drafting was asked for: then schedule sync drafts even where that does not pay."""
        return self.schedule is SYNC and OFF not in self.chooser.allowed

    # What is learned

    def use_cores(self, n_cores: int) -> None:
        """From now on, times are learned and used for `n_cores` cores free for both models (0: all of them)."""
        before = self.alone
        self.alone, self.concurrent = self._on_cores(n_cores)
        self.alone.forget_curves()
        if self.alone is not before and self.rate:
            self.is_steady = self.is_steady and not self.chooser.n_tokens
            self._window = (0, 0.0)  # was measured with the others
            self._has_news = True
            self._update_forecast()

    def begin(self, n_prompt: int, n_room: int | None = None, mode: str = "") -> None:
        """Start a text after `n_prompt` tokens that are new to the draft, with room for `n_room` (None: no limit)."""
        self._use_mode(mode)
        self.calibration.begin()
        self._start_text(n_prompt)
        is_first = not self.alone.target_s(1) or (self.n_max > 0 and not self.calibration.n_scored)
        self.chooser.begin(n_room, is_first=is_first)
        self._lookup_budget.begin(None)
        self.is_steady = True
        for both in self._costs.values():
            for costs in both:
                costs.begin()
        self._review()

    def learn_step(self, n_tokens: int, cost: StepCost) -> None:
        """The target added `n_tokens` at this cost."""
        self._n_jumps = self._n_jumps + 1 if self.alone.is_jump(cost.decode_s) else 0
        if 0 < self._n_jumps < DEFAULT.outliers:
            usual_s = self.costs.target_s(cost.n_candidates + 1)
            cost = replace(cost, decode_s=usual_s, total_s=cost.total_s - cost.decode_s + usual_s)
        else:
            self.costs.add_target(cost.n_candidates + 1, cost.decode_s)
        schedule, costs, alone_s = self.schedule, self.costs, self.alone.target_s(1)
        is_alone = not cost.n_candidates and schedule is not ASYNC
        self._since_alone = 0 if is_alone else self._since_alone + n_tokens
        self._n_unread += n_tokens
        n_own = 1 if cost.source is Origin.LOOKUP else n_tokens  # on which a draft is judged
        self._n_unscored = 0 if self._scored else self._n_unscored + n_own
        self._scored = False
        tokens, seconds = self._recent
        self._recent = (DEFAULT.rate_memory * tokens + n_tokens, DEFAULT.rate_memory * seconds + cost.total_s)
        is_own, gained_s = cost.source is Origin.DRAFT, 0.0
        if is_own:
            self._looked_up.add(self._n_found_since)
            self._n_found_since = 0
            self._window = (self._window[0] + n_tokens, self._window[1] + cost.total_s)
        elif cost.source is Origin.LOOKUP:
            self._n_found += n_tokens - 1
            self._n_found_since += n_tokens - 1
            self._n_unread_found += n_tokens - 1
            is_off = schedule is OFF or not self.rate
            each_s = alone_s if is_off else 1 / (self.rate * self._bias[schedule].value)  # without the lookup
            gained_s = n_tokens * each_s - cost.total_s
        self._lookup_budget.step(cost.total_s, gained_s, alone_s)
        drafted_s: float | None = None
        if schedule is not SYNC or self._forecast.n_verify > 0:  # otherwise sync is the target alone
            if is_own:
                drafted_s = n_tokens * alone_s - cost.total_s
            elif schedule is SYNC:  # the draft was asked, but the lookup's candidates were verified
                drafted_s = cost.decode_s - cost.total_s
        is_due = self.chooser.step(n_tokens, cost.total_s, alone_s, drafted_s)
        if costs.was_wrong:
            self.chooser.budget.begin_again()
            self._n_fruitless = 0
        if cost.source is Origin.ANY:
            self.chooser.budget.spend(max(0.0, costs.target_s(cost.n_candidates + 1) - n_tokens * alone_s))
            is_due = self._has_news = True
        # A forecast takes a millisecond. With the target alone it changes only with what is known about the draft.
        is_first = schedule is OFF and self.alone.target(1).n == DEFAULT.first_alone
        before, before_s = self._reviewed
        stalls = before is schedule and costs.draft_s > DEFAULT.max_slower * before_s > 0
        is_due = (is_due or stalls) and (self._has_news or schedule is not OFF)
        if not self.rate or is_first or is_due:
            self._review()

    def learn_draft(self, n_tokens: int, seconds: float, n_sequences: int = 1) -> None:
        """The draft made a token, for which it decoded `n_tokens` at once, or one in each of `n_sequences`."""
        self._n_unread = self._n_unread_found = 0
        if self.alone.is_jump(seconds / max(1, n_tokens)):
            return
        if n_sequences > 1:
            self.concurrent.add_draft(seconds, n_sequences=n_sequences)
        elif n_tokens >= DEFAULT.read_least:
            self._read.add(seconds / n_tokens)
        elif n_tokens == 1 and self.schedule is ASYNC:
            self.concurrent.add_draft(seconds)
        elif n_tokens == 1:
            self.alone.add_draft(seconds, self.n_draft_threads)
        elif n_tokens == 2 and self.schedule is SYNC:
            self.alone.add_pair(seconds)
            self.alone.inferred_s = seconds / DEFAULT.pair[1]  # one that is always right never reads one token alone

    def learn_scores(self, scores: Iterable[tuple[float, bool]]) -> None:
        """Candidates of these confidences would have been accepted or not."""
        for confidence, accepted in scores:
            self.calibration.add(confidence, accepted)
            self._scored = self._was_scored = self._has_news = True

    def learn_probe(self, scores: Sequence[tuple[float, bool]], n_tokens: int, seconds: float, *, whole: bool) -> None:
        """A probe decoded `n_tokens` (0: it was not possible); `whole`: the draft has now decoded all of the text.

        Otherwise it knew too little of the text to be right as often as it will be. `seconds` is 0 if the time is not
        representative.
        """
        if n_tokens and self.alone.is_jump(seconds / n_tokens):
            seconds = 0.0
        if n := len(scores):
            share = sum(accepted for _, accepted in scores) / n
            if not whole:
                share = min(share / DEFAULT.without_context, DEFAULT.excellent)
            if self.calibration.doubt(share, n):
                self.chooser.budget.begin_again()
                self._n_fruitless = 0
            if whole:
                self.learn_scores(scores)
            else:
                self.calibration.add_share(share, n)
        if n_tokens >= DEFAULT.read_least and seconds:
            self._read.add(seconds / n_tokens)
            self.alone.inferred_s = self.alone.inferred_s or self.read_s / DEFAULT.read
        is_first, self._was_probed, self._n_unscored = not self._was_probed, True, 0
        if n_tokens:
            self._n_unread = 0 if whole else self._n_prompt + self.chooser.n_tokens
        self.chooser.budget.spend(seconds)
        self._review()
        self._n_fruitless = self._n_fruitless + is_first if self.schedule is OFF else 0

    def stop_drafting(self) -> None:
        """The draft is not available for the rest of this generation."""
        self.chooser.give_up()
        self._is_worthwhile, self._size, self.gain = False, 0, 0.0
        self._update_forecast()

    # What is measured on purpose

    def _needs_alone(self, rate: float) -> bool:
        """Whether to measure T(1) in schedule sync, whose gain rests on it: the less that is, the more often."""
        gain = max(1 + DEFAULT.least_gain, rate * self.alone.target_s(1))
        is_due = 1 - 1 / gain <= DEFAULT.alone_share * self._since_alone or self.alone.is_odd
        return self.alone.is_doubted or (is_due and OFF in self.chooser.allowed)

    def _plan(self) -> bool:
        """Choose the size to measure. Returns whether it is new, and to be measured before a schedule is chosen."""
        (first, second), alone = DEFAULT.sizes, self.alone
        known = alone.target(first)
        # A single measurement is repeated: something may have interrupted it.
        is_unsure = known.n == 1 and known.is_fresh
        size = second if known.n and not is_unsure else first
        is_wanted = is_unsure or (self._is_worthwhile and not alone.target(size).is_fresh)
        self._size = size if is_wanted and self.schedule is OFF else 0
        is_new = self._size > 0 and not alone.target(self._size).n
        return is_new and (alone.target(1).n < DEFAULT.first_alone or self._n_arbitrary(self.n_max) > 0)

    def _n_arbitrary(self, n_max: int) -> int:
        """How many arbitrary candidates to verify now in schedule off, to measure T(n); usually 0."""
        alone, cheap = self.alone, DEFAULT.sizes[1]
        one = alone.target(1)
        if not self._size or not one.is_fresh or one.n < DEFAULT.first_alone:
            return 0
        for n in (self._size, cheap):
            if n == self._size or not alone.target(n).is_fresh:
                cost_s = alone.target_s(n, 0.0 if alone.target(n).n else 1.0) - alone.target_s(1)
                if n <= n_max + 1 and cost_s <= self.chooser.budget.credit_s:
                    return n - 1
        return 0

    @property
    def reads_prompt(self) -> bool:
        """Whether a head should read the prompt right after the target: it is new, or has paid."""
        return self._is_worthwhile and self._may_gain and self.schedule is not ASYNC

    def probe_size(self) -> int:
        """How many of the last tokens an idle draft should decode to see which it would have drafted; usually 0."""
        least, alone_s = DEFAULT.probe_tokens // 2, self.alone.target_s(1)
        n_fruitless, silence = self._n_fruitless, DEFAULT.silence
        if n_fruitless >= DEFAULT.patience or (self._was_probed and not self._may_gain):
            silence = DEFAULT.long_silence * max(1, n_fruitless - DEFAULT.patience)
        is_due = self._n_unscored >= silence and self.chooser.n_tokens >= DEFAULT.silence
        may_probe = self._is_worthwhile and not self.remote and OFF in self.chooser.allowed
        if self.schedule is ASYNC or not (alone_s and is_due and may_probe):
            return 0
        budget, each_s = self.chooser.budget, self.read_s or DEFAULT.read * alone_s
        n = min(DEFAULT.probe_tokens, int(budget.credit_s / each_s))
        if self.n_depths > 1 and self._n_unread * each_s > max(0.0, budget.credit_s):
            return 0  # a head reads all that is new
        if n < least or (not budget.is_first and n * each_s > DEFAULT.probe_share * budget.elapsed_s):
            return 0
        return max(n, self._n_unread) if self._n_unread * each_s <= budget.credit_s else n

    # The choice of the schedule

    def _review(self) -> None:
        """Compare the forecast with the measured rate, then reconsider the schedule."""
        self._has_news = False
        found = self._update_forecast()
        tokens, seconds = self._window
        if found and self.chooser.is_settled and seconds:
            self._bias[self.schedule].add(self._limited(tokens / seconds / self.rate))
        self._window = (0, 0.0)
        if found and (self.calibration.n_scored >= DEFAULT.kept_scores or self._n_unscored >= DEFAULT.long_silence):
            rates = self.rates(found)
            self.gain = max(rates[schedule] for schedule in self.schedules) / rates[OFF]
        if found and len(self.chooser.allowed) > 1:
            self._reconsider(found)
        self._reviewed = self.schedule, self.costs.draft_s

    def _reconsider(self, found: Mapping[Schedule, Forecast]) -> None:
        untried = self._untried()
        # How uncertain they are takes two more forecasts of each, and the target waits: only where it is asked for.
        if self.schedule is OFF or untried:
            estimates = self.estimates(found)
            self._may_gain = self.chooser.may_gain(estimates)
        else:
            estimates = {schedule: RateEstimate(*3 * [rate]) for schedule, rate in self.rates(found).items()}
        if self.schedule is OFF:
            self._is_worthwhile = (self.max_gain() or 0.0) > 1 + DEFAULT.least_gain
        if not self._plan():
            # The target's time before the first candidate. It must pay on those tokens that the lookup does not find.
            reads = not self.separate_devices or self.n_depths > 1  # a head cannot read during the prefill
            n_unread = min(self._n_unread, DEFAULT.latest) if self.n_depths > 1 else self._n_unread
            entry_s = 0.0 if not reads else n_unread * self.read_s * (1 + self._looked_up.value)
            self.chooser.review(estimates, entry_s, untried)
        self._forecast = found[self.schedule]

    def _untried(self) -> set[Schedule]:
        """The schedules whose forecasts rest on what is assumed."""
        if self.calibration.n_scored < DEFAULT.kept_scores:
            return {SYNC, ASYNC}.intersection(self.schedules)
        is_known = self.concurrent.target_times or self.separate_devices or self.in_turns
        return set() if is_known else {ASYNC}

    def _update_forecast(self) -> dict[Schedule, Forecast]:
        """Use the forecast of the current schedule; that of the target alone while the draft's costs are unknown."""
        self.choose_branches(allowed=ASYNC in self.chooser.allowed and not self._in_order)
        found, first_s = self.forecasts(), self.costs.target_s(1)
        if found:
            self._forecast = found[self.schedule]
        elif first_s:
            self._forecast = Forecast(1 / first_s)
        if self._must_draft and not self._forecast.n_verify:
            self._forecast = replace(self._forecast, n_verify=1, n_wait=1, stop=(0.0,))
        return found
