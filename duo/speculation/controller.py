"""Controller: which candidates of which proposer to verify, whether to wait for one more, who drafts and in which mode.

All inputs are measured while running: T(n), the target's time for a batch of n tokens (target_costs.py); t_d, the time
of a draft's token (draft_costs.py); a(c), the probability that a candidate of confidence c is accepted (acceptance.py).
They determine λ, the best sustainable rate (forecast.py), and λ determines the number of candidates (decision.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from duo.speculation.constants import DEFAULT
from duo.speculation.decision import best_drafted, best_ready, with_alternatives
from duo.speculation.draft_estimates import DraftEstimates
from duo.speculation.estimators import Time
from duo.speculation.forecast import Forecast
from duo.speculation.lookup_gain import LookupGain, weigh
from duo.speculation.modes import ALONE, ALONE_PLAN, ASYNC, OFF, SYNC, Chooser, Mode, RateEstimate, Schedule, gained_s
from duo.speculation.prospects import ModeForecasts
from duo.speculation.target_costs import TargetCosts
from duo.speculation.trials import Trials, arbitrary
from duo.speculation.types import Origin, Plan, Planned, Probe, Proposal, SizedResult, StepCost, common_prefix

REJECTION = "rejection"  # the mode of sampling that requires decisions in order
NOTHING = Proposal()


class Controller:
    """Decides for all proposers of one target, text after text, and learns from each step.

    Composed of what is known of the target (TargetCosts), of each draft (DraftEstimates) and of the lookup
    (LookupGain), of what each mode promises (ModeForecasts), of the choice among them (Chooser), and of what is
    measured on purpose (Trials). Only the target's thread calls it.
    """

    def __init__(self, n_most: int = 0, target: TargetCosts | None = None) -> None:
        """`n_most`: candidates of proposers that are no drafts, in a batch. Nothing is known, but of the `target`."""
        self.target = target or TargetCosts()
        self.n_most = n_most
        self.n_alternatives = 0  # to candidates, that the target can decode beside these
        self.drafts: dict[str, DraftEstimates] = {}  # by name, those that can be used now
        self.known: dict[str, DraftEstimates] = {}  # and all that ever could
        self.chooser = Chooser()
        self._trials = Trials(self.target, self.chooser)
        self._lookup = LookupGain(self.target)
        self.prospects = ModeForecasts(self.target, self.drafts)
        self._forecast = Forecast(0.0)
        self._reviewed = ALONE, 0.0  # the mode that the last review chose, and the draft's time in it then
        self._n_jumps = 0  # steps in succession that seem to have taken far too long
        self.mode = ALONE  # who drafts now, and in which schedule
        self.draft: DraftEstimates | None = None  # that is used
        self.costs = self.target.alone  # T(n) in this mode
        self._start_text()

    def _start_text(self, sampling: str = "") -> None:
        """Reset what holds for one text only."""
        self._sampling = sampling
        self._in_order = sampling == REJECTION  # a candidate must not be omitted because of one drafted after it
        self.is_steady = True  # whether these have been the free cores all through the text
        self._has_news = True  # whether something was learned since the last review
        self._window = (0, 0.0)  # tokens and seconds since the forecast was last compared with the measured rate
        self._trials.begin()
        self._lookup.begin()

    # Who drafts, and in which mode

    def follow(self) -> None:
        """Follow the chooser. But a target is first measured without a remote draft: it may be on this machine."""
        now = self.chooser.now
        draft = self.drafts.get(now.draft)
        if draft is not None and draft.remote and ALONE in self.chooser.allowed:
            now = now if self.target.alone.time(1).n >= Time.FIRST else ALONE
        self.draft = draft if now.draft else None
        self.costs = draft.beside if draft is not None and now.schedule is ASYNC else self.target.alone
        self.mode = now  # any thread may read it

    @property
    def schedule(self) -> Schedule:
        """The schedule to follow now."""
        return self.mode.schedule

    @property
    def rate(self) -> float:
        """λ: the best sustainable rate of the current mode in tokens/s; 0 while unknown."""
        return self._forecast.rate

    def use(self, drafts: Sequence[DraftEstimates], n_tokens: int, reason: str = "drafts have come or gone") -> None:
        """From now on, in a text of `n_tokens`, these drafts can be used."""
        new = {draft.name: draft for draft in drafts if self.drafts.get(draft.name) is not draft}
        for draft in new.values():
            draft.begin(self._sampling, n_tokens)
            draft.costs.use_cores(self.target.n_cores)
        self._set_drafts(drafts)
        self.chooser.allow(*self.prospects.allowed(), set(new), reason)
        self._has_news = True
        self._update_forecast()

    def _set_drafts(self, drafts: Sequence[DraftEstimates]) -> None:
        named = {draft.name: draft for draft in drafts}
        self.drafts.clear()
        self.drafts |= named
        left = [draft for draft in self.known.values() if draft.remote and draft.name not in named]
        for draft in left[:-1]:  # peers name them, and may name many
            del self.known[draft.name]
            self.target.forget(draft.name)
        self.known |= named
        self._n_max = max((draft.n_max for draft in drafts), default=0)
        self._most = max(self._n_max, self.n_most)  # candidates of any proposer

    def begin(
        self, drafts: Sequence[DraftEstimates], n_prompt: int, n_room: int | None = None, sampling: str = ""
    ) -> None:
        """Start a text in a mode of `sampling`: `n_prompt` tokens new to `drafts`, room for `n_room` (None: any)."""
        self._start_text(sampling)
        self._set_drafts(drafts)
        for draft in drafts:
            draft.costs.use_cores(self.target.n_cores)
            draft.begin(sampling, n_prompt)
        are_new = (not draft.acceptance.n_scored for draft in drafts)
        self.target.begin()
        is_first, n_likely = not self.target.alone.seconds(1) or any(are_new), self.target.length.value
        self.chooser.begin(*self.prospects.allowed(), n_room, is_first=is_first, n_likely=n_likely)
        self.follow()
        self._review()

    def use_cores(self, n_cores: int) -> None:
        """From now on, times are learned and used for `n_cores` cores free for both models (0: all of them)."""
        changed = n_cores != self.target.n_cores
        self.target.use_cores(n_cores)
        for draft in self.drafts.values():
            draft.costs.use_cores(n_cores)
        self.follow()
        if changed and self.rate:
            self.is_steady = self.is_steady and not self.chooser.n_tokens
            self._window = (0, 0.0)  # was measured with the others
            self._has_news = True
            self._update_forecast()

    # What to verify now

    def plan(self, texts: Sequence[Planned], proposals: Sequence[Proposal]) -> Plan:
        """What to do in the next step of `texts` with what the proposers have."""
        at, has_others = -1, False  # the proposal of the draft in use, and whether there are chances of others
        for i, each in enumerate(proposals):
            if each.probe is not None:
                self._learn_probe(self.drafts[each.draft], each.probe)
                if self.mode == Mode(each.draft, ASYNC):
                    return Plan(proposer=i, wait_s=0.0)  # its thread starts before the target computes
            at = i if each.draft and each.draft == self.mode.draft else at
            has_others = has_others or bool(each.chances)
        for draft in self.drafts.values():
            if draft.has_ended:
                self.use([each for each in self.drafts.values() if not each.has_ended], 0, "the draft has ended")
                break
        text, mode, rate = texts[0], self.mode, self._lookup.value_of_time(self.rate)
        n_most = min(self._most, text.n_room - 1)
        if not rate or n_most <= 0 or (mode.schedule is SYNC and self._trials.needs_alone(rate)):
            return ALONE_PLAN
        if mode.schedule is OFF and (n := self._trials.n_arbitrary(min(self._n_max or n_most, n_most))):
            return arbitrary(n, text, proposals)
        if self.draft is None and not has_others:
            return ALONE_PLAN
        plan = self._compare(self.draft, at if self.draft is not None else -1, text.n_room - 1, n_most, rate, proposals)
        if self.draft is not None and plan.proposer == at and mode.schedule is SYNC and not self._in_order:
            n_most = min(self.n_alternatives, text.n_room - 1 - len(plan.candidates))
            return with_alternatives(plan, self.draft, self.costs, rate, n_most)
        return plan

    def _compare(
        self, draft: DraftEstimates | None, at: int, n_room: int, n_most: int, rate: float,
        proposals: Sequence[Proposal],
    ) -> Plan:  # fmt: skip
        """The most valuable of what the draft in use and the others have, in tokens; `at`: its proposal, `rate`: λ."""
        drafted, chances, expected = proposals[at] if at >= 0 else NOTHING, list[float](), NOTHING.candidates
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
                    if draft is not None and n_same == len(chances):
                        expected = other.candidates[n_same : n_same + draft.costs.n_at_once(theirs[n_same:])]
                found.append((i, theirs, n_same))
        n, value, best = 0, 1 - rate * self.costs.seconds(1), ALONE_PLAN
        if draft is not None:
            n, value = best_drafted(
                draft, chances, self.costs, n_room, rate, drafted.next_s,
                in_order=self._in_order, must_draft=self._must_draft,
            )  # fmt: skip
            best = Plan(drafted.candidates[:n], at)
            if n > len(chances):
                best = Plan(tuple(expected), at, wait_s=drafted.next_s + draft.token_s)
        curve = self.costs.curve(self._most + 1, self._lookup.doubt) if found else ()
        for i, theirs, n_same in found:
            n_found, found_value = best_ready(theirs, curve, rate)
            if draft is not None and n > 0 and not chances and draft.schedule is SYNC and not self._in_order:
                # The value of asking the draft for a token first. The draft proposes the first of these tokens about as
                # often as that token is right; where the draft proposes another token, that one is verified.
                agreed = [1 - (1 - theirs[0]) * (1 - draft.acceptance.mean), *theirs[1:]]
                asked = best_ready(agreed, curve, rate)[1] - rate * drafted.next_s
                value = max(value, theirs[0] * asked + (1 - theirs[0]) * value)
            if n_found > n_same and found_value > value:
                best, value = Plan(proposals[i].candidates[:n_found], i, proposals[i].origin), found_value
        return best

    @property
    def _must_draft(self) -> bool:
        """Whether to draft in schedule sync even where that does not pay."""
        return self.schedule is SYNC and ALONE not in self.chooser.allowed

    # What is learned

    def learn(self, results: Sequence[SizedResult], cost: StepCost | None) -> None:
        """The target added tokens at this cost; None: it says nothing about other steps."""
        if cost is None:
            for draft in self.drafts.values():
                draft.n_unread += len(results[0].tokens)
            return
        n_tokens, mode, costs = len(results[0].tokens), self.mode, self.costs
        cost = self._learn_cost(cost)
        alone_s = self.target.alone.seconds(1)
        self._trials.learn(n_tokens, is_alone=not cost.n_candidates and mode.schedule is not ASYNC)
        n_found = self._lookup.learn(n_tokens, cost, self._rate_without(mode, cost, alone_s), alone_s)
        n_own = 1 if cost.source is Origin.LOOKUP else n_tokens  # on which a draft is judged
        for draft in self.drafts.values():
            self._has_news = self._has_news or draft.scored
            draft.step(n_tokens, n_own, n_found)
        if cost.source is Origin.DRAFT:
            self._window = (self._window[0] + n_tokens, self._window[1] + cost.total_s)
        drafted_s = gained_s(mode, self._forecast, n_tokens, cost, self.target.alone)
        is_due = self.chooser.step(n_tokens, cost.total_s, alone_s, drafted_s)
        if costs.was_wrong:
            self._begin_again()
        if cost.source is Origin.ANY:
            self.chooser.budget.spend(max(0.0, costs.seconds(cost.n_candidates + 1) - n_tokens * alone_s))
            is_due = self._has_news = True
        if not self.rate or self._needs_review(mode, is_due=is_due):
            self._review()
        if self.mode.schedule is not ASYNC:
            for draft in self.drafts.values():
                draft.n_probe = self._trials.probe_size(draft)

    def _rate_without(self, mode: Mode, cost: StepCost, alone_s: float) -> float:
        """What the rate would have been without the lookup, in tokens/s; 0: the lookup had no part in the step."""
        if cost.source is not Origin.LOOKUP or not alone_s:
            return 0.0
        return self.rate * self.prospects.bias_of(mode).value if self.rate and mode != ALONE else 1 / alone_s

    def _learn_cost(self, cost: StepCost) -> StepCost:
        """Learn T(n). Returns the cost, or the usual one if the machine was suspended meanwhile, or is busy."""
        self._n_jumps = self._n_jumps + 1 if self.target.is_jump(cost.decode_s) else 0
        usual_s, factor = self.costs.seconds(cost.n_candidates + 1), 1.0
        if 0 < self._n_jumps < DEFAULT.few:
            return cost._replace(decode_s=usual_s, total_s=cost.total_s - cost.decode_s + usual_s)
        if self.schedule is ASYNC:
            self.target.is_disturbed = False
        elif self.target.learn_cores(cost.cpu_s, cost.decode_s) and usual_s:
            factor = cost.decode_s / usual_s
            self.costs.scale(factor)
        if self.target.is_disturbed and usual_s:
            return cost._replace(decode_s=usual_s, total_s=cost.total_s * min(1.0, usual_s / cost.decode_s))
        if (factor := factor * self.costs.add(cost.n_candidates + 1, cost.decode_s)) != 1.0:
            for draft in self.drafts.values():
                draft.costs.scale(factor)
        return cost

    def _needs_review(self, mode: Mode, *, is_due: bool) -> bool:
        """Whether to reconsider the mode, in which a step was made: a forecast takes a millisecond."""
        before, before_s = self._reviewed
        draft = self.draft
        stalls = before == mode and draft is not None and draft.token_s > DEFAULT.max_slower * before_s > 0
        # With the target alone, a forecast changes only with what is known about the drafts.
        is_first = mode == ALONE and self.target.alone.time(1).n == Time.FIRST
        return is_first or ((is_due or stalls) and (self._has_news or mode != ALONE))

    def _begin_again(self) -> None:
        """What was known from earlier texts is wrong."""
        self.chooser.budget.begin_again()
        for draft in self.drafts.values():
            draft.n_fruitless = 0

    def _learn_probe(self, draft: DraftEstimates, probe: Probe) -> None:
        if self._trials.learn_probe(draft, probe):
            self._begin_again()
        is_first, draft.was_probed = not draft.was_probed, True
        self._review()
        draft.n_fruitless = draft.n_fruitless + is_first if self.draft is not draft else 0

    # The choice of the mode

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
        self._reviewed = self.mode, draft.token_s if draft is not None else 0.0

    def _reconsider(self, found: Mapping[Mode, Forecast]) -> None:
        untried = self.prospects.untried()
        # How uncertain they are takes two more forecasts of each, and the target waits: only where it is asked for.
        if self.mode == ALONE or untried:
            estimates = self.prospects.estimates(found)
            for name, draft in self.drafts.items():
                draft.may_gain, draft.worth = self.chooser.prospects_of(name, estimates)
        else:
            estimates = {mode: RateEstimate(*3 * [rate]) for mode, rate in self.prospects.rates(found).items()}
        if self.mode == ALONE:
            for draft in self.drafts.values():
                gain = self.prospects.max_gain(draft)
                draft.is_worthwhile = gain is not None and gain > 1 + DEFAULT.least_gain
        is_worthwhile = any(draft.is_worthwhile for draft in self.drafts.values())
        if not self._trials.choose_size(self._n_max, is_worthwhile=is_worthwhile, is_alone=self.mode == ALONE):
            entry_s = {name: self.prospects.entry_s(draft) for name, draft in self.drafts.items()}
            self.chooser.review(estimates, entry_s, untried)
        self._use_forecast(found)

    def _update_forecast(self) -> dict[Mode, Forecast]:
        """Use the forecast of the current mode; that of the target alone while the draft's costs are unknown."""
        for name, draft in self.drafts.items():
            may_prepare = Mode(name, ASYNC) in self.chooser.allowed and not self._in_order
            draft.choose_branches(allowed=may_prepare, must_pay=True)
        found = self.prospects.forecasts()
        self._use_forecast(found)
        return found

    def _use_forecast(self, found: Mapping[Mode, Forecast]) -> None:
        self.follow()
        mode, first_s = self.mode, self.costs.seconds(1)
        self._forecast = found.get(mode) or (Forecast(1 / first_s) if first_s else self._forecast)
        if self._must_draft and not self._forecast.n_verify:
            self._forecast = replace(self._forecast, n_verify=1, n_wait=1, stop=(0.0,))
        for draft in self.drafts.values():
            is_used = draft.name == mode.draft
            draft.schedule, draft.forecast = (mode.schedule, self._forecast) if is_used else (OFF, Forecast(0.0))
            draft.is_chosen = draft.name == self.chooser.now.draft
            draft.reads_prompt = draft.is_worthwhile and draft.may_gain and mode.schedule is not ASYNC
