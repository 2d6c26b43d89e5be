"""Controller: which candidates of which proposer to verify, whether to wait for one more, who drafts and in which mode.

All inputs are measured while running: T(n), the target's time for a batch of n tokens (target_costs.py); t_d, the time
of a draft's token (draft_costs.py); a(c), the probability that a candidate of confidence c is accepted (acceptance.py).
They determine λ, the best sustainable rate (forecast.py), and λ determines the number of candidates (decision.py).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypedDict

from duo.speculation.acceptance import bin_of
from duo.speculation.constants import DEFAULT
from duo.speculation.decision import best_batch, best_in_order, best_ready
from duo.speculation.draft_estimates import HALF, DraftEstimates
from duo.speculation.estimators import Mean, between
from duo.speculation.forecast import Forecast, limit
from duo.speculation.modes import ALONE, ASYNC, OFF, SYNC, Budget, Chooser, Mode, RateEstimate, Schedule
from duo.speculation.target_costs import BatchTimes, BatchTimesState, TargetCosts
from duo.speculation.types import Candidate, Origin, Plan, Probe, Proposal, StepCost, common_prefix

REJECTION = "rejection"  # the mode of sampling that requires decisions in order
_MUCH_LIKELIER = 9  # odds


ALONE_PLAN, NOTHING = Plan(), Proposal()


class Planned(Protocol):
    """What the controller knows of a text whose next step it plans."""

    tokens: list[int]
    n_room: int  # tokens that the step may add


class SizedResult(Protocol):
    """What a step adds to a text."""

    @property
    def tokens(self) -> Sequence[int]:
        """The new tokens."""


class TargetState(TypedDict):
    """What a profile keeps of a target: JSON types, which are checked when they are restored."""

    costs: BatchTimesState  # T(n)
    bias: float  # of forecasts for the target alone
    looked_up: float  # tokens that the lookup finds between two other steps


class Controller:
    """Decides for all proposers of one target, text after text, and learns from each step.

    While no draft computes, some decodes carry arbitrary candidates, so that T(n) is measured, and drafts are *probed*:
    scored on what the target has written. In schedule sync T(1) is measured. A budget pays for all of this. Only the
    target's thread calls it.
    """

    def __init__(self, n_most: int = 0) -> None:
        """`n_most`: candidates of proposers that are no drafts, in a batch. Nothing is known yet."""
        self.target = TargetCosts()
        self.n_most = n_most
        self.drafts: dict[str, DraftEstimates] = {}  # by name, those that can be used now
        self.known: dict[str, DraftEstimates] = {}  # and all that ever could
        self.chooser = Chooser()
        self._looked_up = Mean()  # tokens that the lookup finds between two other steps, which a draft has to read
        self._forecast = Forecast(0.0)
        self._lookup_budget = Budget(DEFAULT.lookup, DEFAULT.lookup)
        self._reviewed = ALONE, 0.0  # the mode that the last review chose, and the draft's time in it then
        self._n_jumps = 0  # steps in succession that seem to have taken far too long
        self._since_alone = 0  # tokens since T(1) was measured
        self._start_text()

    def _start_text(self, mode: str = "") -> None:
        """Reset what holds for one text only."""
        self._mode_of_sampling = mode
        self._in_order = mode == REJECTION  # a candidate must not be omitted because of one drafted after it
        self.is_steady = True  # whether these have been the free cores all through the text
        self._size = 0  # of batches to measure
        self._has_news = True  # whether something was learned since the last review
        self._window = (0, 0.0)  # tokens and seconds since the forecast was last compared with the measured rate
        self._recent = (0.0, 0.0)  # tokens and seconds of this text, the latest steps counting most
        self._n_found = 0  # tokens of this text that the lookup found,
        self._n_found_since = 0  # since a step of another proposer

    # Who drafts, and in which mode

    @property
    def mode(self) -> Mode:
        """Who drafts now. A target is first measured without a remote draft: it may be on this machine."""
        now = self.chooser.now
        if now.draft and self.drafts[now.draft].remote and ALONE in self.chooser.allowed:
            return now if self.target.alone.time(1).n >= DEFAULT.first_alone else ALONE
        return now

    @property
    def schedule(self) -> Schedule:
        """The schedule to follow now."""
        return self.mode.schedule

    @property
    def draft(self) -> DraftEstimates | None:
        """The draft in use."""
        return self.drafts.get(self.mode.draft)

    @property
    def costs(self) -> BatchTimes:
        """The target's times in the current mode."""
        draft = self.draft
        return draft.beside if draft is not None and self.schedule is ASYNC else self.target.alone

    @property
    def rate(self) -> float:
        """λ: the best sustainable rate of the current mode in tokens/s; 0 while unknown."""
        return self._forecast.rate

    def use(self, drafts: Sequence[DraftEstimates], n_tokens: int, reason: str = "drafts have come or gone") -> None:
        """From now on, in a text of `n_tokens`, these drafts can be used."""
        for draft in drafts:
            if draft.name not in self.drafts:
                draft.begin(self._mode_of_sampling, n_tokens)
                draft.costs.use_cores(self.target.n_cores)
        self._set_drafts(drafts)
        self.chooser.allow(*self._allowed(), reason)
        self._has_news = True
        self._update_forecast()

    def _set_drafts(self, drafts: Sequence[DraftEstimates]) -> None:
        self.drafts = {draft.name: draft for draft in drafts}
        self.known |= self.drafts
        self._n_max = max((draft.n_max for draft in drafts), default=0)
        self._most = max(self._n_max, self.n_most)  # candidates of any proposer

    def _allowed(self) -> tuple[list[Mode], Mode]:
        """The modes to choose among, and the first one: a draft with a device of its own, else the target alone."""
        drafting = [Mode(name, each) for name, d in self.drafts.items() for each in d.schedules if each is not OFF]
        may_end = all(OFF in draft.schedules for draft in self.drafts.values())
        allowed = [*([ALONE] if may_end or not drafting else []), *drafting]
        apart = (mode for mode in drafting if mode.schedule is ASYNC and self.drafts[mode.draft].separate_devices)
        return allowed, next(apart, ALONE if ALONE in allowed else allowed[-1])

    def begin(self, drafts: Sequence[DraftEstimates], n_prompt: int, n_room: int | None = None, mode: str = "") -> None:
        """Start a text after `n_prompt` tokens, which are new to the `drafts`, with room for `n_room` (None: no limit).

        `mode`: of sampling.
        """
        self._start_text(mode)
        self._set_drafts(drafts)
        for draft in drafts:
            draft.costs.use_cores(self.target.n_cores)
            draft.begin(mode, n_prompt)
        are_new = (not draft.acceptance.n_scored for draft in drafts)
        self.chooser.begin(*self._allowed(), n_room, is_first=not self.target.alone.seconds(1) or any(are_new))
        self._lookup_budget.begin(None)
        self.target.begin()
        self._review()

    def use_cores(self, n_cores: int) -> None:
        """From now on, times are learned and used for `n_cores` cores free for both models (0: all of them)."""
        changed = n_cores != self.target.n_cores
        self.target.use_cores(n_cores)
        for draft in self.drafts.values():
            draft.costs.use_cores(n_cores)
        if changed and self.rate:
            self.is_steady = self.is_steady and not self.chooser.n_tokens
            self._window = (0, 0.0)  # was measured with the others
            self._has_news = True
            self._update_forecast()

    # What to verify now

    def plan(self, texts: Sequence[Planned], proposals: Sequence[Proposal]) -> Plan:
        """What to do in the next step of `texts` with what the proposers have."""
        for each in proposals:
            if each.probe is not None:
                self._learn_probe(self.drafts[each.draft], each.probe)
        if any(each.has_ended for each in self.drafts.values()):
            self.use([each for each in self.drafts.values() if not each.has_ended], 0, "the draft has ended")
        text, mode, rate = texts[0], self.mode, self._value_of_time
        n_most, draft = min(self._most, text.n_room - 1), self.drafts.get(mode.draft)
        if not rate or n_most <= 0 or (mode.schedule is SYNC and self._needs_alone(rate)):
            return ALONE_PLAN
        if mode.schedule is OFF and (n := self._n_arbitrary(min(self._n_max or n_most, n_most))):
            return self._arbitrary(n, text, proposals)
        drafted_at = next((i for i, each in enumerate(proposals) if each.draft and each.draft == mode.draft), -1)
        drafted = proposals[drafted_at] if drafted_at >= 0 else NOTHING
        chances, found = list[float](), list[tuple[int, list[float], int]]()
        if drafted.candidates and draft is not None:
            adjusted = [chance for _, chance in draft.acceptance.chances(draft.acceptance.mean)]  # to this text
            chances = [adjusted[bin_of(each.confidence, len(adjusted))] for each in drafted.candidates]
        for i, other in enumerate(proposals):
            if other.chances and (theirs := self._chances(other, n_most)):
                n_same = 0
                # With rejection sampling, the choice between the proposers must not depend on what was drawn.
                if not self._in_order:
                    n_same = common_prefix(*([one.token for one in each.candidates] for each in (drafted, other)))
                    _weigh(chances, theirs, n_same)
                found.append((i, theirs, n_same))
        if draft is None and not found:
            return ALONE_PLAN
        n, value = self._best_drafted(draft, chances, text.n_room - 1, rate, drafted.next_s)
        chosen, wait_s = drafted_at, None
        if draft is not None and n > len(chances):
            n, wait_s = 0, drafted.next_s + self._token_s(draft)
        asks = (n > 0 or wait_s is not None) and not chances and mode.schedule is SYNC and not self._in_order
        curve = self.costs.curve(self._most + 1, self._lookup_doubt) if found else ()
        for i, theirs, n_same in found:
            n_found, found_value = best_ready(theirs, curve, rate)
            if asks and draft is not None:
                # The value of asking the draft for a token first, which predicts the first of these about as often as
                # that is right. Otherwise there is what is drafted.
                agreed = [1 - (1 - theirs[0]) * (1 - draft.acceptance.mean), *theirs[1:]]
                asked = best_ready(agreed, curve, rate)[1] - rate * drafted.next_s
                value = max(value, theirs[0] * asked + (1 - theirs[0]) * value)
            if n_found > n_same and found_value > value:
                chosen, n, wait_s, value = i, n_found, None, found_value
        if wait_s is not None:
            return Plan(proposer=chosen, wait_s=wait_s)
        if chosen < 0:
            return ALONE_PLAN
        return Plan(proposals[chosen].candidates[:n], chosen, proposals[chosen].origin)

    @staticmethod
    def _arbitrary(n: int, text: Planned, proposals: Sequence[Proposal]) -> Plan:
        """A plan that verifies `n` candidates, whatever they are: those of a proposer, or copies of the last token."""
        for i, each in enumerate(proposals):
            if len(each.candidates) >= n:
                return Plan(each.candidates[:n], i, each.origin)
        return Plan(n * (Candidate(text.tokens[-1], 0.0),), origin=Origin.ANY)

    def _token_s(self, draft: DraftEstimates) -> float:
        return (draft.costs.concurrent if self.schedule is ASYNC else draft.costs.alone).token_s

    @property
    def _value_of_time(self) -> float:
        """λ for decisions, in tokens/s: forecasts know nothing of the lookup, which may make the text faster."""
        tokens, seconds = self._recent
        return max(self.rate, tokens / seconds) if self._n_found and seconds else self.rate

    def _best_drafted(
        self, draft: DraftEstimates | None, chances: Sequence[float], n_max: int, rate: float, next_s: float
    ) -> tuple[int, float]:
        """How many of the draft's candidates to verify, and the value of that. One more than there are: wait for it."""
        if draft is None:
            return 0, 1 - rate * self.costs.seconds(1)
        n_max, forecast, is_sync = min(draft.n_max, n_max), self._forecast, self.schedule is SYNC
        curve = self.costs.curve(draft.n_max + 1)[: n_max + 1]
        draft_s, mean, least = self._token_s(draft), draft.acceptance.mean, int(self._must_draft)
        if self._in_order:
            n = best_in_order(chances, curve, rate, mean, next_s, draft_s)
            if not chances and next_s < math.inf:
                n = max(n, least)
            # A comparison with other candidates must not depend on those that were drawn, nor on how many there are: so
            # it is made as if none had been drafted yet.
            return n, best_batch((), curve, rate, mean, draft_s or math.inf, draft_s, forecast.worth_of)[1]
        n, value = best_batch(chances, curve, rate, mean, next_s, draft_s, forecast.worth_of)
        if is_sync:
            n = len(chances)
            if n < n_max and next_s < math.inf and forecast.goes_on(n, math.prod(chances), rate):
                return n + 1, value
            n = max(best_ready(chances[:n_max], curve, rate)[0], min(n, least))
        return n, value

    @property
    def _must_draft(self) -> bool:
        """Whether drafting was asked for: then schedule sync drafts even where that does not pay."""
        return self.schedule is SYNC and ALONE not in self.chooser.allowed

    @property
    def _lookup_doubt(self) -> float:
        """Standard deviations by which chances and times must be better for the lookup: without credit, one."""
        return 1.0 if self._lookup_budget.credit_s < 0 else 0.0

    def _chances(self, found: Proposal, n_most: int) -> list[float]:
        """The chances of candidates that cost no time, as many as may be verified."""
        n, doubt = min(n_most, self.costs.n_affordable(self._lookup_budget.credit_s) - 1), self._lookup_doubt
        return [
            max(0.0, chance - doubt * math.sqrt(chance * (1 - chance) / seen)) for chance, seen in found.chances[:n]
        ]

    # What is learned

    def learn(self, results: Sequence[SizedResult], cost: StepCost | None) -> None:
        """The target added tokens at this cost; None: it says nothing about other steps."""
        if cost is None:
            return
        n_tokens = len(results[0].tokens)
        self._n_jumps = self._n_jumps + 1 if self.target.is_jump(cost.decode_s) else 0
        mode, costs, alone = self.mode, self.costs, self.target.alone
        if 0 < self._n_jumps < DEFAULT.outliers:
            usual_s = costs.seconds(cost.n_candidates + 1)
            cost = replace(cost, decode_s=usual_s, total_s=cost.total_s - cost.decode_s + usual_s)
        elif (factor := costs.add(cost.n_candidates + 1, cost.decode_s)) != 1.0:
            for draft in self.drafts.values():
                draft.costs.scale(factor)
        alone_s = alone.seconds(1)
        is_alone = not cost.n_candidates and mode.schedule is not ASYNC
        self._since_alone = 0 if is_alone else self._since_alone + n_tokens
        n_own = 1 if cost.source is Origin.LOOKUP else n_tokens  # on which a draft is judged
        for draft in self.drafts.values():
            draft.n_unread += n_tokens
            draft.n_unscored = 0 if draft.scored else draft.n_unscored + n_own
            self._has_news = self._has_news or draft.scored
            draft.scored = False
        tokens, seconds = self._recent
        self._recent = (DEFAULT.rate_memory * tokens + n_tokens, DEFAULT.rate_memory * seconds + cost.total_s)
        self._learn_lookup(n_tokens, cost, mode, alone_s)
        is_due = self.chooser.step(n_tokens, cost.total_s, alone_s, self._gained_s(n_tokens, cost, mode, alone_s))
        if costs.was_wrong:
            self._begin_again()
        if cost.source is Origin.ANY:
            self.chooser.budget.spend(max(0.0, costs.seconds(cost.n_candidates + 1) - n_tokens * alone_s))
            is_due = self._has_news = True
        # A forecast takes a millisecond. With the target alone it changes only with what is known about the drafts.
        is_first = mode == ALONE and alone.time(1).n == DEFAULT.first_alone
        before, before_s = self._reviewed
        draft_now = self.draft
        stalls = (
            before == mode and draft_now is not None and self._token_s(draft_now) > DEFAULT.max_slower * before_s > 0
        )
        is_due = (is_due or stalls) and (self._has_news or mode != ALONE)
        if not self.rate or is_first or is_due:
            self._review()
        for draft in self.drafts.values():
            draft.n_probe = self._probe_size(draft)

    def _learn_lookup(self, n_tokens: int, cost: StepCost, mode: Mode, alone_s: float) -> None:
        """What the lookup has gained in a step, compared with doing without it."""
        gained_s = 0.0
        if cost.source is Origin.DRAFT:
            self._looked_up.add(self._n_found_since)
            self._n_found_since = 0
            self._window = (self._window[0] + n_tokens, self._window[1] + cost.total_s)
        elif cost.source is Origin.LOOKUP:
            self._n_found += n_tokens - 1
            self._n_found_since += n_tokens - 1
            for draft in self.drafts.values():
                draft.n_unread_found += n_tokens - 1
            is_off = mode == ALONE or not self.rate
            each_s = alone_s if is_off else 1 / (self.rate * self._bias_of(mode).value)  # without the lookup
            gained_s = n_tokens * each_s - cost.total_s
        self._lookup_budget.step(cost.total_s, gained_s, alone_s)

    def _gained_s(self, n_tokens: int, cost: StepCost, mode: Mode, alone_s: float) -> float | None:
        """What the draft has gained in a step, compared with the target alone; None: it had no part in it."""
        if mode.schedule is SYNC and not self._forecast.n_verify:  # sync is the target alone then
            return None
        if cost.source is Origin.DRAFT:
            return n_tokens * alone_s - cost.total_s
        # In schedule sync, the draft was asked, but the lookup's candidates were verified.
        return cost.decode_s - cost.total_s if mode.schedule is SYNC else None

    def _begin_again(self) -> None:
        """What was known from earlier texts is wrong."""
        self.chooser.budget.begin_again()
        for draft in self.drafts.values():
            draft.n_fruitless = 0

    def _learn_probe(self, draft: DraftEstimates, probe: Probe) -> None:
        """A draft was scored on what the target has written.

        A draft that has not decoded all of the text knew too little of it to be right as often as it will be.
        """
        scores, n_tokens, seconds, whole = probe
        if n_tokens and self.target.is_jump(seconds / n_tokens):
            seconds = 0.0
        if n := len(scores):
            share = sum(accepted for _, accepted in scores) / n
            if not whole:
                share = min(share / DEFAULT.without_context, DEFAULT.excellent)
            if draft.acceptance.doubt(share, n):
                self._begin_again()
            if whole:
                draft.learn_scores(scores)
            else:
                draft.acceptance.add_share(share, n)
        if seconds:
            draft.costs.add_read(n_tokens, seconds)
            alone = draft.costs.alone
            alone.inferred_s = alone.inferred_s or draft.costs.read_s / DEFAULT.read
        is_first, draft.was_probed, draft.n_unscored, draft.n_probe = not draft.was_probed, True, 0, 0
        if n_tokens:
            draft.n_unread = 0 if whole else draft.n_prompt + self.chooser.n_tokens
        self.chooser.budget.spend(seconds)
        self._review()
        draft.n_fruitless = draft.n_fruitless + is_first if self.mode == ALONE else 0

    # What is measured on purpose

    def _needs_alone(self, rate: float) -> bool:
        """Whether to measure T(1) in schedule sync, whose gain rests on it: the less that is, the more often."""
        alone = self.target.alone
        gain = max(1 + DEFAULT.least_gain, rate * alone.seconds(1))
        is_due = 1 - 1 / gain <= DEFAULT.alone_share * self._since_alone or alone.is_odd
        return alone.is_doubted or (is_due and ALONE in self.chooser.allowed)

    def _plan_size(self) -> bool:
        """Choose the size to measure. Returns whether it is new, and to be measured before a mode is chosen."""
        (first, second), alone = DEFAULT.sizes, self.target.alone
        known = alone.time(first)
        # A single measurement is repeated: something may have interrupted it.
        is_unsure = known.n == 1 and known.is_fresh
        size = second if known.n and not is_unsure else first
        is_wanted = is_unsure or (self._is_worthwhile and not alone.time(size).is_fresh)
        self._size = size if is_wanted and self.mode == ALONE else 0
        is_new = self._size > 0 and not alone.time(self._size).n
        return is_new and (alone.time(1).n < DEFAULT.first_alone or self._n_arbitrary(self._n_max) > 0)

    @property
    def _is_worthwhile(self) -> bool:
        return any(draft.is_worthwhile for draft in self.drafts.values())

    def _n_arbitrary(self, n_max: int) -> int:
        """How many arbitrary candidates to verify now in schedule off, to measure T(n); usually 0."""
        alone, cheap = self.target.alone, DEFAULT.sizes[1]
        one = alone.time(1)
        if not self._size or not one.is_fresh or one.n < DEFAULT.first_alone:
            return 0
        for n in (self._size, cheap):
            if n == self._size or not alone.time(n).is_fresh:
                cost_s = alone.seconds(n, 0.0 if alone.time(n).n else 1.0) - alone.seconds(1)
                if n <= n_max + 1 and cost_s <= self.chooser.budget.credit_s:
                    return n - 1
        return 0

    def _probe_size(self, draft: DraftEstimates) -> int:
        """How many of the last tokens an idle draft should decode to see which it would have drafted; usually 0."""
        least, alone_s = DEFAULT.probe_tokens // 2, self.target.alone.seconds(1)
        if draft.remote or not (draft.is_worthwhile and ALONE in self.chooser.allowed and alone_s):
            return 0
        n_fruitless, silence = draft.n_fruitless, DEFAULT.silence
        if n_fruitless >= DEFAULT.patience or (draft.was_probed and not draft.may_gain):
            silence = DEFAULT.long_silence * max(1, n_fruitless - DEFAULT.patience)
        is_due = draft.n_unscored >= silence and self.chooser.n_tokens >= DEFAULT.silence
        if self.schedule is ASYNC or not is_due:
            return 0
        budget, each_s = self.chooser.budget, draft.costs.read_s or DEFAULT.read * alone_s
        n = min(DEFAULT.probe_tokens, int(budget.credit_s / each_s))
        if draft.n_depths > 1 and draft.n_unread * each_s > max(0.0, budget.credit_s):
            return 0  # a head reads all that is new
        if n < least or (not budget.is_first and n * each_s > DEFAULT.probe_share * budget.elapsed_s):
            return 0
        return max(n, draft.n_unread) if draft.n_unread * each_s <= budget.credit_s else n

    # The choice of the mode

    def _bias_of(self, mode: Mode) -> Mean:
        return self.target.bias if mode == ALONE else self.drafts[mode.draft].bias[mode.schedule]

    def forecasts(self, acceptance: float | None = None, doubt: float = 0.0) -> dict[Mode, Forecast]:
        """What each mode can reach, as far as its costs are known; empty while T(1) is unknown."""
        alone_s = self.target.alone.seconds(1, doubt)
        if not alone_s:
            return {}
        found = {ALONE: Forecast(1 / alone_s)}
        for name, draft in self.drafts.items():
            promised = draft.forecasts(self._looked_up.value, acceptance, doubt)
            found |= {Mode(name, schedule): each for schedule, each in promised.items()}
        return found

    def rates(self, found: Mapping[Mode, Forecast] | None = None) -> dict[Mode, float]:
        """The forecasts (default: of now) in tokens/s, corrected by how accurate earlier ones were."""
        found = self.forecasts() if found is None else found
        return {m: each.rate * self._bias_of(m if each.n_verify else ALONE).value for m, each in found.items()}

    def estimates(self, found: Mapping[Mode, Forecast]) -> dict[Mode, RateEstimate]:
        """The rates() of these forecasts, and how uncertain they are."""
        both = {name: draft.range(self._looked_up.value) for name, draft in self.drafts.items()}
        alone = self.target.alone
        ends = [{ALONE: 1 / alone.seconds(1, doubt)} for doubt in (HALF, -HALF)]
        for i, end in enumerate(ends):
            for name, each in both.items():
                end |= {Mode(name, schedule): forecast.rate for schedule, forecast in each[i].items()}
        low, high = ends
        return {
            m: RateEstimate(rate, min(1.0, low[m] / found[m].rate) * rate, max(1.0, high[m] / found[m].rate) * rate)
            for m, rate in self.rates(found).items()
        }

    def _review(self) -> None:
        """Compare the forecast with the measured rate, then reconsider the mode."""
        self._has_news = False
        found, mode = self._update_forecast(), self.mode
        tokens, seconds = self._window
        if mode in found and len(found) > 1 and self.chooser.is_settled and seconds:
            ratio = tokens / seconds / self.rate
            if mode == ALONE:
                self.target.bias.add(min(max(ratio, 0.5), 2.0))
            else:
                self.drafts[mode.draft].learn_bias(mode.schedule, ratio)
        self._window = (0, 0.0)
        if len(found) > 1 and len(self.chooser.allowed) > 1:
            self._reconsider(found)
        draft = self.draft
        self._reviewed = self.mode, self._token_s(draft) if draft is not None else 0.0

    def _reconsider(self, found: Mapping[Mode, Forecast]) -> None:
        untried = self._untried()
        # How uncertain they are takes two more forecasts of each, and the target waits: only where it is asked for.
        if self.mode == ALONE or untried:
            estimates = self.estimates(found)
            for name, draft in self.drafts.items():
                draft.may_gain = self.chooser.may_gain(name, estimates)
        else:
            estimates = {mode: RateEstimate(*3 * [rate]) for mode, rate in self.rates(found).items()}
        if self.mode == ALONE:
            for draft in self.drafts.values():
                gain = self.max_gain(draft)
                draft.is_worthwhile = gain is not None and gain > 1 + DEFAULT.least_gain
        if not self._plan_size():
            entry_s = {name: self._entry_s(draft) for name, draft in self.drafts.items()}
            self.chooser.review(estimates, entry_s, untried)
        self._use_forecast(found)

    def _entry_s(self, draft: DraftEstimates) -> float:
        """The target's time before the draft's first candidate. It must pay on tokens that the lookup does not find."""
        if draft.separate_devices and draft.n_depths == 1:  # a head cannot read during the prefill
            return 0.0
        n_unread = min(draft.n_unread, DEFAULT.latest) if draft.n_depths > 1 else draft.n_unread
        return n_unread * draft.costs.read_s * (1 + self._looked_up.value)

    def _untried(self) -> Collection[Mode]:
        """The modes whose forecasts rest on what is assumed."""
        found = set[Mode]()
        for name, draft in self.drafts.items():
            if draft.acceptance.n_scored < DEFAULT.kept_scores:
                found |= {Mode(name, schedule) for schedule in draft.schedules if schedule is not OFF}
            elif not (draft.beside.times or draft.separate_devices or draft.in_turns):
                found.add(Mode(name, ASYNC))
        return found

    def max_gain(self, draft: DraftEstimates) -> float | None:
        """The best rate with an excellent draft and the lowest costs, over the target alone; None while unknown."""
        found = draft.forecasts(self._looked_up.value, DEFAULT.excellent, -1.0)
        alone_s = self.target.alone.seconds(1, -1.0)
        return max(1.0, *(each.rate * alone_s for each in found.values())) if found else None

    def _update_forecast(self) -> dict[Mode, Forecast]:
        """Use the forecast of the current mode; that of the target alone while the draft's costs are unknown."""
        for name, draft in self.drafts.items():
            draft.choose_branches(allowed=Mode(name, ASYNC) in self.chooser.allowed and not self._in_order)
        found = self.forecasts()
        self._use_forecast(found)
        return found

    def _use_forecast(self, found: Mapping[Mode, Forecast]) -> None:
        mode, first_s = self.mode, self.costs.seconds(1)
        if mode in found:
            self._forecast = found[mode]
        elif first_s:
            self._forecast = Forecast(1 / first_s)
        if self._must_draft and not self._forecast.n_verify:
            self._forecast = replace(self._forecast, n_verify=1, n_wait=1, stop=(0.0,))
        for draft in self.drafts.values():
            is_used = draft.name == mode.draft
            draft.schedule, draft.forecast = (mode.schedule, self._forecast) if is_used else (OFF, Forecast(0.0))
            draft.is_chosen = draft.name == self.chooser.now.draft
            draft.reads_prompt = draft.is_worthwhile and draft.may_gain and mode.schedule is not ASYNC

    def max_rate(self) -> float:
        """The rate in tokens/s that even a draft which is always right would not exceed; infinite while unknown."""
        limits = []
        for draft in self.drafts.values():
            for target, own in ((self.target.alone, draft.costs.alone), (draft.beside, draft.costs.concurrent)):
                if target.seconds(1):
                    limits.append(limit(target.curve(draft.n_max + 1), own.token_s or math.inf, 1.0))
        return max(limits, default=math.inf)

    # What is kept

    def state(self) -> TargetState:
        """What was learned of the target alone, as JSON types."""
        return {"costs": self.target.state(), "bias": self.target.bias.value, "looked_up": self._looked_up.value}

    def restore(self, state: TargetState) -> bool:
        """Start from the state() of an earlier run. False, and nothing is restored, if it is damaged."""
        try:
            bias, looked_up = (between(state[name], 0, 1e9) for name in ("bias", "looked_up"))
            TargetCosts().restore(state["costs"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        self.target.restore(state["costs"])
        self.target.bias = Mean(value=min(max(bias, 0.5), 2.0), n=4)
        self._looked_up = Mean(value=looked_up, n=DEFAULT.kept_scores)
        return True


class TargetAlone:
    """The controller of a target for which nothing proposes."""

    mode = ALONE

    def begin(self, *_: object) -> None:
        """See Controller."""

    def use(self, *_: object) -> None:
        """See Controller."""

    def use_cores(self, n_cores: int) -> None:
        """See Controller."""

    def plan(self, *_: object) -> Plan:
        """Decode one token."""
        return ALONE_PLAN

    def learn(self, *_: object) -> None:
        """See Controller."""


def _weigh(drafted: list[float], found: list[float], n_agreed: int) -> None:
    """Adjust the chances of two proposers whose first `n_agreed` tokens are the same: about wrong only if both are.

    Where they differ, what the lookup has `found` is dropped unless it is much likelier (benchmarks/NOTES.md).
    """
    for i in range(min(n_agreed, len(found))):
        drafted[i] = found[i] = 1 - (1 - drafted[i]) * (1 - found[i])
    if n_agreed < min(len(drafted), len(found)):
        ours, theirs = found[n_agreed], drafted[n_agreed]
        if ours * (1 - theirs) < _MUCH_LIKELIER * theirs * (1 - ours):
            del found[n_agreed:]
