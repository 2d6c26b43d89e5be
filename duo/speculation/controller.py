"""Controller: which candidates of which proposer to verify, whether to wait for one more, who drafts and in which mode.

All inputs are measured while running: T(n), the target's time for a batch of n tokens (target_costs.py); t_d, the time
of a draft's token (draft_costs.py); a(c), the probability that a candidate of confidence c is accepted (acceptance.py).
They determine λ, the best sustainable rate (forecast.py), and λ determines the number of candidates (decision.py).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypedDict

from duo.speculation.constants import DEFAULT
from duo.speculation.decision import best_batch, best_in_order, best_ready
from duo.speculation.draft_estimates import HALF, DraftEstimates
from duo.speculation.estimators import Mean, Time, between
from duo.speculation.forecast import SURE, Forecast, limit
from duo.speculation.lookup_gain import LookupGain, weigh
from duo.speculation.modes import ALONE, ASYNC, OFF, SYNC, Chooser, Mode, RateEstimate, Schedule
from duo.speculation.target_costs import BatchTimes, BatchTimesState, TargetCosts
from duo.speculation.trials import Trials
from duo.speculation.types import Candidate, Origin, Plan, Probe, Proposal, StepCost, common_prefix

REJECTION = "rejection"  # the mode of sampling that requires decisions in order
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

    Composed of what is known of the target (TargetCosts), of each draft (DraftEstimates) and of the lookup
    (LookupGain), of the choice of the mode (Chooser), and of what is measured on purpose (Trials). Only the target's
    thread calls it.
    """

    def __init__(self, n_most: int = 0) -> None:
        """`n_most`: candidates of proposers that are no drafts, in a batch. Nothing is known yet."""
        self.target = TargetCosts()
        self.n_most = n_most
        self.drafts: dict[str, DraftEstimates] = {}  # by name, those that can be used now
        self.known: dict[str, DraftEstimates] = {}  # and all that ever could
        self.chooser = Chooser()
        self._trials = Trials(self.target, self.chooser)
        self._lookup = LookupGain()
        self._forecast = Forecast(0.0)
        self._reviewed = ALONE, 0.0  # the mode that the last review chose, and the draft's time in it then
        self._n_jumps = 0  # steps in succession that seem to have taken far too long
        self._start_text()

    def _start_text(self, mode: str = "") -> None:
        """Reset what holds for one text only."""
        self._sampling = mode
        self._in_order = mode == REJECTION  # a candidate must not be omitted because of one drafted after it
        self.is_steady = True  # whether these have been the free cores all through the text
        self._has_news = True  # whether something was learned since the last review
        self._window = (0, 0.0)  # tokens and seconds since the forecast was last compared with the measured rate
        self._trials.begin()
        self._lookup.begin()

    # Who drafts, and in which mode

    @property
    def mode(self) -> Mode:
        """Who drafts now. A target is first measured without a remote draft: it may be on this machine."""
        now = self.chooser.now
        if now.draft and self.drafts[now.draft].remote and ALONE in self.chooser.allowed:
            return now if self.target.alone.time(1).n >= Time.FIRST else ALONE
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
                draft.begin(self._sampling, n_tokens)
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
        text, mode, rate = texts[0], self.mode, self._lookup.value_of_time(self.rate)
        n_most, draft = min(self._most, text.n_room - 1), self.drafts.get(mode.draft)
        if not rate or n_most <= 0 or (mode.schedule is SYNC and self._trials.needs_alone(rate)):
            return ALONE_PLAN
        if mode.schedule is OFF and (n := self._trials.n_arbitrary(min(self._n_max or n_most, n_most))):
            return self._arbitrary(n, text, proposals)
        if draft is None and not any(each.chances for each in proposals):
            return ALONE_PLAN
        return self._compare(draft, text.n_room - 1, n_most, rate, proposals)

    def _compare(
        self, draft: DraftEstimates | None, n_room: int, n_most: int, rate: float, proposals: Sequence[Proposal]
    ) -> Plan:
        """The most valuable of what the draft in use and the others have, in tokens; `rate`: λ."""
        at = next((i for i, each in enumerate(proposals) if draft is not None and each.draft == draft.name), -1)
        drafted, chances = proposals[at] if at >= 0 else NOTHING, list[float]()
        if draft is not None:
            chances = draft.chances(drafted.candidates)
        found = list[tuple[int, list[float], int]]()
        for i, other in enumerate(proposals):
            if other.chances and (theirs := self._lookup.chances(other, n_most, self.costs)):
                n_same = 0
                # With rejection sampling, the choice between the proposers must not depend on what was drawn.
                if not self._in_order:
                    n_same = common_prefix(*([one.token for one in each.candidates] for each in (drafted, other)))
                    weigh(chances, theirs, n_same)
                found.append((i, theirs, n_same))
        n, value = self._best_drafted(draft, chances, n_room, rate, drafted.next_s)
        best = Plan(drafted.candidates[:n], at)
        if draft is not None and n > len(chances):
            best = Plan(proposer=at, wait_s=drafted.next_s + self._token_s(draft))
        curve = self.costs.curve(self._most + 1, self._lookup.doubt) if found else ()
        for i, theirs, n_same in found:
            n_found, found_value = best_ready(theirs, curve, rate)
            if draft is not None and n > 0 and not chances and draft.schedule is SYNC and not self._in_order:
                # The value of asking the draft for a token first, which predicts the first of these about as often as
                # that is right. Otherwise there is what is drafted.
                agreed = [1 - (1 - theirs[0]) * (1 - draft.acceptance.mean), *theirs[1:]]
                asked = best_ready(agreed, curve, rate)[1] - rate * drafted.next_s
                value = max(value, theirs[0] * asked + (1 - theirs[0]) * value)
            if n_found > n_same and found_value > value:
                best, value = Plan(proposals[i].candidates[:n_found], i, proposals[i].origin), found_value
        return best

    @staticmethod
    def _arbitrary(n: int, text: Planned, proposals: Sequence[Proposal]) -> Plan:
        """A plan that verifies `n` candidates, whatever they are: those of a proposer, or copies of the last token."""
        for i, each in enumerate(proposals):
            if len(each.candidates) >= n:
                return Plan(each.candidates[:n], i, each.origin)
        return Plan(n * (Candidate(text.tokens[-1], 0.0),), origin=Origin.ANY)

    def _token_s(self, draft: DraftEstimates) -> float:
        return (draft.costs.concurrent if self.schedule is ASYNC else draft.costs.alone).token_s

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
        self._trials.learn(n_tokens, is_alone=not cost.n_candidates and mode.schedule is not ASYNC)
        n_own = 1 if cost.source is Origin.LOOKUP else n_tokens  # on which a draft is judged
        for draft in self.drafts.values():
            draft.n_unread += n_tokens
            draft.n_unscored = 0 if draft.scored else draft.n_unscored + n_own
            self._has_news = self._has_news or draft.scored
            draft.scored = False
        without = self.rate * self._bias_of(mode).value if self.rate and mode != ALONE else 1 / alone_s
        n_found = self._lookup.learn(n_tokens, cost, without, alone_s)
        for draft in self.drafts.values():
            draft.n_unread_found += n_found
        if cost.source is Origin.DRAFT:
            self._window = (self._window[0] + n_tokens, self._window[1] + cost.total_s)
        is_due = self.chooser.step(n_tokens, cost.total_s, alone_s, self._gained_s(n_tokens, cost, mode, alone_s))
        if costs.was_wrong:
            self._begin_again()
        if cost.source is Origin.ANY:
            self.chooser.budget.spend(max(0.0, costs.seconds(cost.n_candidates + 1) - n_tokens * alone_s))
            is_due = self._has_news = True
        # A forecast takes a millisecond. With the target alone it changes only with what is known about the drafts.
        is_first = mode == ALONE and alone.time(1).n == Time.FIRST
        before, before_s = self._reviewed
        draft_now = self.draft
        stalls = (
            before == mode and draft_now is not None and self._token_s(draft_now) > DEFAULT.max_slower * before_s > 0
        )
        is_due = (is_due or stalls) and (self._has_news or mode != ALONE)
        if not self.rate or is_first or is_due:
            self._review()
        for draft in self.drafts.values():
            draft.n_probe = self._trials.probe_size(draft)

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
                share = min(share / DEFAULT.without_context, SURE)
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
            promised = draft.forecasts(self._lookup.per_step.value, acceptance, doubt)
            found |= {Mode(name, schedule): each for schedule, each in promised.items()}
        return found

    def rates(self, found: Mapping[Mode, Forecast] | None = None) -> dict[Mode, float]:
        """The forecasts (default: of now) in tokens/s, corrected by how accurate earlier ones were."""
        found = self.forecasts() if found is None else found
        return {m: each.rate * self._bias_of(m if each.n_verify else ALONE).value for m, each in found.items()}

    def estimates(self, found: Mapping[Mode, Forecast]) -> dict[Mode, RateEstimate]:
        """The rates() of these forecasts, and how uncertain they are."""
        both = {name: draft.range(self._lookup.per_step.value) for name, draft in self.drafts.items()}
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
        is_worthwhile = any(draft.is_worthwhile for draft in self.drafts.values())
        if not self._trials.choose_size(self._n_max, is_worthwhile=is_worthwhile, is_alone=self.mode == ALONE):
            entry_s = {name: self._entry_s(draft) for name, draft in self.drafts.items()}
            self.chooser.review(estimates, entry_s, untried)
        self._use_forecast(found)

    def _entry_s(self, draft: DraftEstimates) -> float:
        """The target's time before the draft's first candidate. It must pay on tokens that the lookup does not find."""
        if draft.separate_devices and draft.n_depths == 1:  # a head cannot read during the prefill
            return 0.0
        n_unread = min(draft.n_unread, 2 * DEFAULT.horizon) if draft.n_depths > 1 else draft.n_unread
        return n_unread * draft.costs.read_s * (1 + self._lookup.per_step.value)

    def _untried(self) -> Collection[Mode]:
        """The modes whose forecasts rest on what is assumed."""
        found = set[Mode]()
        for name, draft in self.drafts.items():
            if draft.acceptance.n_scored < DEFAULT.probe_tokens // 2:
                found |= {Mode(name, schedule) for schedule in draft.schedules if schedule is not OFF}
            elif not (draft.beside.times or draft.separate_devices or draft.in_turns):
                found.add(Mode(name, ASYNC))
        return found

    def max_gain(self, draft: DraftEstimates) -> float | None:
        """The best rate with an excellent draft and the lowest costs, over the target alone; None while unknown."""
        found = draft.forecasts(self._lookup.per_step.value, SURE, -1.0)
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
        return {"costs": self.target.state(), "bias": self.target.bias.value, "looked_up": self._lookup.per_step.value}

    def restore(self, state: TargetState) -> bool:
        """Start from the state() of an earlier run. False, and nothing is restored, if it is damaged."""
        try:
            bias, looked_up = (between(state[name], 0, 1e9) for name in ("bias", "looked_up"))
            TargetCosts().restore(state["costs"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        self.target.restore(state["costs"])
        self.target.bias = Mean(value=min(max(bias, 0.5), 2.0), n=4)
        self._lookup.per_step = Mean(value=looked_up, n=DEFAULT.probe_tokens // 2)
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
