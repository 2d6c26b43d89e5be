"""Prospects: the rate that each mode promises, from what is known of the target, its drafts and the lookup."""

import math
from collections.abc import Collection, Mapping

from duo.speculation.constants import DEFAULT
from duo.speculation.draft_estimates import HALF, DraftEstimates
from duo.speculation.estimators import Mean
from duo.speculation.forecast import Forecast
from duo.speculation.modes import ALONE, ASYNC, OFF, Mode, RateEstimate
from duo.speculation.target_costs import TargetCosts


class ModeForecasts:
    """Forecasts for all modes of a target with these drafts."""

    def __init__(self, target: TargetCosts, drafts: Mapping[str, DraftEstimates]) -> None:
        """`drafts`: by name, those that can be used now."""
        self._target, self._drafts = target, drafts

    def allowed(self) -> tuple[list[Mode], Mode]:
        """The modes to choose among, and the first one: a draft with a device of its own, else the target alone."""
        drafting = [Mode(name, each) for name, d in self._drafts.items() for each in d.schedules if each is not OFF]
        may_end = all(OFF in draft.schedules for draft in self._drafts.values())
        allowed = [*([ALONE] if may_end or not drafting else []), *drafting]
        apart = (mode for mode in drafting if mode.schedule is ASYNC and self._drafts[mode.draft].separate_devices)
        return allowed, next(
            apart, ALONE if ALONE in allowed else [each for each in allowed if each.draft == allowed[0].draft][-1]
        )

    def bias_of(self, mode: Mode) -> Mean:
        """How accurate forecasts of this mode were."""
        return self._target.bias if mode == ALONE else self._drafts[mode.draft].bias[mode.schedule]

    def forecasts(self, acceptance: float | None = None, doubt: float = 0.0) -> dict[Mode, Forecast]:
        """What each mode can reach, as far as its costs are known; empty while T(1) is unknown."""
        alone_s = self._target.alone.seconds(1, doubt)
        if not alone_s:
            return {}
        found = {ALONE: Forecast(1 / alone_s)}
        for name, draft in self._drafts.items():
            promised = draft.forecasts(self._target.n_found.value, acceptance, doubt)
            found |= {Mode(name, schedule): each for schedule, each in promised.items()}
        return found

    def rates(self, found: Mapping[Mode, Forecast] | None = None) -> dict[Mode, float]:
        """The forecasts (default: of now) in tokens/s, corrected by how accurate earlier ones were."""
        found = self.forecasts() if found is None else found
        rates = {m: each.rate * self.bias_of(m if each.n_verify else ALONE).value for m, each in found.items()}
        return {mode: rate and 1 / (1 / rate + self._slower_s(mode)) for mode, rate in rates.items()}

    def _slower_s(self, mode: Mode) -> float:
        """By how much longer the lookup's steps take, for each other step, while the draft computes."""
        if mode.schedule is not ASYNC:
            return 0.0
        n_found = self._target.n_found.value
        n, beside = 1 + max(1, round(n_found)), self._drafts[mode.draft].beside
        return min(1.0, n_found) * max(0.0, beside.seconds(n) - self._target.alone.seconds(n))

    def estimates(self, found: Mapping[Mode, Forecast]) -> dict[Mode, RateEstimate]:
        """The rates() of these forecasts, and how uncertain they are."""
        both = {name: draft.range(self._target.n_found.value) for name, draft in self._drafts.items()}
        alone = self._target.alone
        ends = [{ALONE: 1 / alone.seconds(1, doubt)} for doubt in (HALF, -HALF)]
        for i, end in enumerate(ends):
            for name, each in both.items():
                end |= {Mode(name, schedule): forecast.rate for schedule, forecast in each[i].items()}
        low, high = ends
        return {
            m: RateEstimate(rate, min(1.0, low[m] / found[m].rate) * rate, max(1.0, high[m] / found[m].rate) * rate)
            for m, rate in self.rates(found).items()
        }

    def entry_s(self, draft: DraftEstimates) -> float:
        """The target's time before the draft's first candidate. It must pay on tokens that the lookup does not find."""
        if draft.separate_devices and draft.n_depths == 1:  # a head cannot read during the prefill
            return 0.0
        n_unread = min(draft.n_unread, 2 * DEFAULT.horizon) if draft.n_depths > 1 else draft.n_unread
        return n_unread * draft.costs.read_s * (1 + self._target.n_found.value)

    def untried(self) -> Collection[Mode]:
        """The modes whose forecasts rest on what is assumed."""
        found = set[Mode]()
        for name, draft in self._drafts.items():
            if draft.acceptance.n_scored < DEFAULT.probe_tokens // 2:
                found |= {Mode(name, schedule) for schedule in draft.schedules if schedule is not OFF}
            elif not (draft.beside.times or draft.separate_devices or draft.in_turns):
                found.add(Mode(name, ASYNC))
        return found

    def max_gain(self, draft: DraftEstimates) -> float | None:
        """The best rate with an excellent draft and the lowest costs, over the target alone; None while unknown."""
        found = draft.forecasts(self._target.n_found.value, DEFAULT.excellent, -1.0)
        alone_s = self._target.alone.seconds(1, -1.0)
        return max(1.0, *(each.rate * alone_s for each in found.values())) if found else None

    def max_rate(self) -> float:
        """The rate in tokens/s that even a draft which is always right would not exceed; infinite while unknown."""
        return max((draft.limit(1.0) for draft in self._drafts.values()), default=math.inf)
